// Takes back what was begun, where a scope is left before keep(): with an error, or by an exception (memory that is too short).
#pragma once
#include <utility>

namespace fsccl {

template <class Action>
class Undo {
 public:
  explicit Undo(Action action) : action_(std::move(action)) {}
  ~Undo() {
    if (!kept_) action_();
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  void keep() { kept_ = true; }

 private:
  Action action_;
  bool kept_ = false;
};

}  // namespace fsccl
