# Compiles for ARM's 64-bit processors on a machine of another kind, against the packages that scripts/arm_root.sh
# unpacks; what was built runs under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(root ${CMAKE_CURRENT_LIST_DIR}/../build-arm/root)
set(CMAKE_FIND_ROOT_PATH ${root} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_SKIP_BUILD_RPATH ON)  # the emulator finds libraries in the root
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${root})
