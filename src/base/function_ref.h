// A reference to a function object (std::function_ref of C++26). A function takes it as an argument
// if it calls the object before it returns and does not keep it. It allocates nothing. The object
// must live as long as the call.
#pragma once
#include <type_traits>
#include <utility>

namespace fsccl {

template <class Signature>
class FunctionRef;

template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  FunctionRef() = default;  // refers to nothing, and must not be called
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> &&
             std::is_invocable_r_v<R, F&, Args...>)
  FunctionRef(const F& function)  // NOLINT(google-explicit-constructor): as std::function_ref
      : function_(&function), call_([](const void* to, Args... args) -> R {
          return (*static_cast<const F*>(to))(std::forward<Args>(args)...);
        }) {}

  explicit operator bool() const { return call_ != nullptr; }
  R operator()(Args... args) const { return call_(function_, std::forward<Args>(args)...); }

 private:
  const void* function_ = nullptr;
  R (*call_)(const void*, Args...) = nullptr;
};

}  // namespace fsccl
