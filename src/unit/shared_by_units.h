// The objects that the units of a pool share, one for each communicator of the units. The first
// unit makes the object, and it ends with the last. A table is never destroyed (base/immortal.h),
// because a unit may end after static objects are gone.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "base/immortal.h"

namespace fsccl {

class Communicator;

template <class Object, class Pool>
class SharedByUnits {
 public:
  // Returns the object of the units of `comm` in `pool`. make() makes it if there is none. `use`
  // tells apart objects that the same units share for several uses.
  template <class Make>
  static std::shared_ptr<Object> of(const Pool& pool, const Communicator& comm, const Make& make,
                                    int use = 0) {
    SharedByUnits& all = table();
    const std::lock_guard lock(all.mutex_);
    std::weak_ptr<Object>& entry = all.objects_[{&pool, &comm, use}];
    std::shared_ptr<Object> made = entry.lock();
    if (!made) entry = made = make();
    return made;
  }
  // Lets later units make another object, while the present one stays with those that have it.
  static void forget(const Pool& pool, const Communicator& comm, int use) {
    SharedByUnits& all = table();
    const std::lock_guard lock(all.mutex_);
    all.objects_.erase({&pool, &comm, use});
  }
  // The destructor of an object calls this.
  static void forget_ended() {
    SharedByUnits& all = table();
    const std::lock_guard lock(all.mutex_);
    std::erase_if(all.objects_, [](const auto& entry) { return entry.second.expired(); });
  }

 private:
  static SharedByUnits& table() {
    static Immortal<SharedByUnits> all;
    return all.get();
  }

  std::mutex mutex_;
  std::map<std::tuple<const Pool*, const Communicator*, int>, std::weak_ptr<Object>> objects_;
};

}  // namespace fsccl
