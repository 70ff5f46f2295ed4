"""The interfaces of other packages on Tsallis' kernels: change the import, keep the program."""
