// toml++'s functions, compiled here once. Debian's library of them has the new std::string, which
// not every torch has, and a wheel would need it wherever it goes.
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>
