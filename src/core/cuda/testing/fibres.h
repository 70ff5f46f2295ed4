// Fibres: stacks between which a program switches by itself. The emulation (simt.h) runs each
// thread of a CUDA block on one.
//
// On x86-64 a switch is 14 instructions (some 5 ns); elsewhere it is ucontext's, which asks the
// operating system for the signal mask each time. AddressSanitizer and ThreadSanitizer are told of
// every switch.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TSALLIS_FIBRES_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define TSALLIS_FIBRES_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define TSALLIS_FIBRES_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define TSALLIS_FIBRES_TSAN 1
#endif
#if defined(TSALLIS_FIBRES_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(TSALLIS_FIBRES_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace tsallis::simt {

#if defined(__x86_64__)
// Saves the callee's registers on this stack, its top in *save, and goes on at `to`.
extern "C" void TsallisSwitchStack(void** save, void* to);
asm(R"(
.pushsection .text
.weak TsallisSwitchStack
.type TsallisSwitchStack, @function
TsallisSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size TsallisSwitchStack, .-TsallisSwitchStack
.popsection
)");
#endif

// A piece of memory for a stack, with a page without access below it.
class Stack {
 public:
  static constexpr std::size_t kBytes = std::size_t{256} << 10;

  Stack() {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(memory);
    mprotect(base_, 4096, PROT_NONE);
  }
  ~Stack() {
    if (base_ != nullptr) munmap(base_, kBytes);
  }
  Stack(Stack&& other) noexcept : base_(other.base_) { other.base_ = nullptr; }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  std::byte* bottom() const { return base_ + 4096; }
  std::size_t size() const { return kBytes - 4096; }

 private:
  std::byte* base_ = nullptr;
};

class Fibre {
 public:
  // The one that is running: what Switch leaves for the first time.
  Fibre() = default;
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;
  ~Fibre() { Forget(); }

  // Makes it begin with entry(), which must not return. `colour` moves the top of its stack, so
  // that the stacks of a block do not fall into the same sets of a cache.
  void Begin(const Stack& stack, unsigned colour, void (*entry)()) {
#if defined(TSALLIS_FIBRES_TSAN)
    // Making one takes ThreadSanitizer a millisecond. It may be used again, but keeps a record of
    // the functions that were never left.
    if (++uses_ > 1000) Forget();
#else
    Forget();
#endif
    stack_ = &stack;
#if defined(TSALLIS_FIBRES_ASAN)
    // Frames of one that never ended may lie here.
    __asan_unpoison_memory_region(stack.bottom(), stack.size());
#endif
    std::byte* top = stack.bottom() + stack.size() - colour * 704 % 16384;
#if defined(__x86_64__)
    auto** at =
        reinterpret_cast<void**>(reinterpret_cast<std::uintptr_t>(top) & ~std::uintptr_t{15});
    *--at = nullptr;  // entry's return address: it has none
    *--at = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--at = nullptr;
    top_ = at;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack.bottom();
    context_.uc_stack.ss_size = static_cast<std::size_t>(top - stack.bottom());
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#endif
#if defined(TSALLIS_FIBRES_TSAN)
    if (!owns_tsan_) tsan_ = __tsan_create_fiber(0);
    owns_tsan_ = true;
#endif
  }

  // Goes on where `to` was left, or begins it.
  static void Switch(Fibre& from, Fibre& to) {
#if defined(TSALLIS_FIBRES_TSAN)
    if (from.tsan_ == nullptr) from.tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.tsan_, 0);
#endif
#if defined(TSALLIS_FIBRES_ASAN)
    const void* bottom = to.stack_ != nullptr ? to.stack_->bottom() : to.native_bottom_;
    const std::size_t size = to.stack_ != nullptr ? to.stack_->size() : to.native_size_;
    last_ = &from;
    __sanitizer_start_switch_fiber(&from.asan_, bottom, size);
#endif
#if defined(__x86_64__)
    TsallisSwitchStack(&from.top_, to.top_);
#else
    swapcontext(&from.context_, &to.context_);
#endif
    from.Arrive();
  }

  // The first thing that entry() does.
  void Arrive() {
#if defined(TSALLIS_FIBRES_ASAN)
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(asan_, &bottom, &size);
    if (last_->stack_ == nullptr) {
      last_->native_bottom_ = bottom;
      last_->native_size_ = size;
    }
#endif
  }

 private:
  void Forget() {
#if defined(TSALLIS_FIBRES_TSAN)
    if (owns_tsan_) __tsan_destroy_fiber(tsan_);
    owns_tsan_ = false;
    tsan_ = nullptr;
    uses_ = 0;
#endif
#if defined(TSALLIS_FIBRES_ASAN)
    asan_ = nullptr;
#endif
  }

  const Stack* stack_ = nullptr;
#if defined(__x86_64__)
  void* top_ = nullptr;
#else
  ucontext_t context_ = {};
#endif
#if defined(TSALLIS_FIBRES_TSAN)
  void* tsan_ = nullptr;
  bool owns_tsan_ = false;
  int uses_ = 0;
#endif
#if defined(TSALLIS_FIBRES_ASAN)
  void* asan_ = nullptr;
  const void* native_bottom_ = nullptr;
  std::size_t native_size_ = 0;
  static inline Fibre* last_ = nullptr;
#endif
};

}  // namespace tsallis::simt
