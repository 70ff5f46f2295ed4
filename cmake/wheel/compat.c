/* Older versions of functions of glibc and libgcc, so that the wheel loads where glibc is 2.28: a compiler on a newer
   system would bind the newest ones. */
struct stat;

/* The version that every symbol of an architecture began with, and that of its struct stat. */
#if defined(__aarch64__)
#define TSALLIS_GLIBC "GLIBC_2.17"
#define TSALLIS_STAT 0
#else
#define TSALLIS_GLIBC "GLIBC_2.2.5"
#define TSALLIS_STAT 1
#endif

#define TSALLIS_OLD(name)                                                                       \
  double old_##name(double);                                                                    \
  __asm__(".symver old_" #name "," #name "@" TSALLIS_GLIBC);                                    \
  __attribute__((visibility("hidden"))) double name(double x) { return old_##name(x); }
TSALLIS_OLD(exp)
TSALLIS_OLD(log)
TSALLIS_OLD(log2)

double old_pow(double, double);
__asm__(".symver old_pow,pow@" TSALLIS_GLIBC);
__attribute__((visibility("hidden"))) double pow(double x, double y) { return old_pow(x, y); }

double old_hypot(double, double);
__asm__(".symver old_hypot,hypot@" TSALLIS_GLIBC);
__attribute__((visibility("hidden"))) double hypot(double x, double y) { return old_hypot(x, y); }

/* Before 2.33 stat and its kin were in every program, above functions that take the version of the struct first. */
#define TSALLIS_OLD_STAT(name, old, Place)                                                      \
  int old(int, Place, struct stat*);                                                            \
  __asm__(".symver " #old ",__" #old "@" TSALLIS_GLIBC);                                        \
  __attribute__((visibility("hidden"))) int name(Place place, struct stat* found) {             \
    return old(TSALLIS_STAT, place, found);                                                     \
  }
TSALLIS_OLD_STAT(stat, xstat, const char*)
TSALLIS_OLD_STAT(lstat, lxstat, const char*)
TSALLIS_OLD_STAT(fstat, fxstat, int)

/* Before 2.34 these stood in libdl, which a Python process has loaded. */
void* old_dlopen(const char*, int);
__asm__(".symver old_dlopen,dlopen@" TSALLIS_GLIBC);
__attribute__((visibility("hidden"))) void* dlopen(const char* file, int mode) { return old_dlopen(file, mode); }
void* old_dlsym(void*, const char*);
__asm__(".symver old_dlsym,dlsym@" TSALLIS_GLIBC);
__attribute__((visibility("hidden"))) void* dlsym(void* library, const char* name) { return old_dlsym(library, name); }

int old_once(int*, void (*)(void));
__asm__(".symver old_once,pthread_once@" TSALLIS_GLIBC);
__attribute__((visibility("hidden"))) int pthread_once(int* control, void (*once)(void)) {
  return old_once(control, once);
}

/* libstdc++ looks whether shared pointers need atomic counts: they do. */
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
