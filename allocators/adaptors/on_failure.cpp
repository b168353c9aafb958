// This adaptor calls a function of the program if upstream has no memory, and then tries once more
// if that function gave back any bytes. It does not try again if upstream refuses a request for
// another reason.
#include "allocators/adaptors/adaptors.h"

namespace fsccl {
namespace {

class OnFailure : public Adaptor {
 public:
  OnFailure(Upstream upstream, std::function<uint64_t(uint64_t)> ask)
      : Adaptor(std::move(upstream)), ask_(std::move(ask)) {}

  Result<void*> allocate(const MemoryRequest& request) override {
    Result<void*> result = upstream_->allocate(request);
    if (result.ok() || !is_shortage(result.status().code()) || ask_(request.bytes) == 0)
      return result;
    return upstream_->allocate(request);
  }

 private:
  const std::function<uint64_t(uint64_t)> ask_;
};

}  // namespace

Upstream make_on_failure(Upstream upstream, std::function<uint64_t(uint64_t bytes)> on_failure) {
  return std::make_shared<OnFailure>(std::move(upstream), std::move(on_failure));
}

}  // namespace fsccl
