// Takes back what was begun, where a scope is left before keep(): with an error, or by an exception
// (memory that is too short). Where the action is short of memory, too, it ends there, and what
// left the scope goes on.
#pragma once
#include <new>
#include <utility>

namespace fsccl {

template <class Action>
class Undo {
 public:
  explicit Undo(Action action) : action_(std::move(action)) {}
  ~Undo() {
    if (kept_) return;
    try {
      action_();
    } catch (const std::bad_alloc&) {
    }
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  void keep() { kept_ = true; }

 private:
  Action action_;
  bool kept_ = false;
};

}  // namespace fsccl
