// fmt's functions, compiled here once: header-only, every file that formats a text would compile
// them again, for half of its time. Debian's library of them is older than the headers that
// LibTorch ships.

// fmt writes into the buffer of a FILE by itself, and writes before its first byte once the FILE
// could not be flushed (seen with fmt 12.1 and glibc 2.36, standard output on a full disk). With
// this, it formats aside and calls fwrite, and throws std::system_error where that fails.
#define FMT_USE_FALLBACK_FILE 1
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// Templates that fmt's headers declare and its library instantiates.
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
template auto dragonbox::to_decimal<float>(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal<double>(double) noexcept -> dragonbox::decimal_fp<double>;

}  // namespace detail
FMT_END_NAMESPACE
