// Undoes what was begun if the scope ends before keep(), by an error or by an exception (for lack
// of memory). If the action itself lacks memory, it stops there, and the error or exception goes
// on.
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
