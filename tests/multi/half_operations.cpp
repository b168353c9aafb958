// The calls of half_call_test.cpp that submit several operations, and one that changes the history
// of slots.
#include <memory>

#include "multi/half_calls.h"

namespace fsccl::testing {
namespace {

constexpr size_t kCount = 100'000;

using Collective = fsccl_status_t (*)(std::vector<float>& all, std::vector<float>& own,
                                      fsccl_comm_t comm);
Maker collective(Collective call) {
  return [call](const Child&, fsccl_comm_t world) {
    Call made;
    made.comm = part_of(world, 0);
    const auto all = std::make_shared<std::vector<float>>(kRanks * kCount);
    const auto own = std::make_shared<std::vector<float>>(kRanks * kCount);
    made.before = [] {};
    made.run = [=] { return call(*all, *own, made.comm); };
    made.give_back = [] {};
    return made;
  };
}

fsccl_codec_t codec_of(fsccl_codec_kind_t kind, uint32_t flags = 0) {
  fsccl_codec_t codec = FSCCL_CODEC_INIT;
  codec.kind = kind;
  codec.flags = flags;
  return codec;
}
const fsccl_codec_t kDifferences = codec_of(FSCCL_CODEC_DELTA, FSCCL_CODEC_NEVER_DECLINES),
                    kMxfp8 = codec_of(FSCCL_CODEC_MXFP8), kInt8 = codec_of(FSCCL_CODEC_INT8);

void nothing(const MadeUnit&) {}
fsccl_status_t unshard(const MadeUnit& made) {
  return fsccl_unit_unshard(made.unit(), FSCCL_UNSHARD_READ, nullptr, nullptr);
}
void unshard_before(const MadeUnit& made) { must_do(unshard(made), "unshard"); }
fsccl_status_t reshard(const MadeUnit& made) { return fsccl_unit_reshard(made.unit(), nullptr); }
void take_grads(const MadeUnit& made) {
  fsccl_view_t view{};
  for (size_t i = 0; i < MadeUnit::kParams; i++)
    must_do(fsccl_unit_grad(made.unit(), i, nullptr, &view), "grad");
}
fsccl_status_t reduce_grads(const MadeUnit& made) {
  return fsccl_unit_reduce_grads(made.unit(), nullptr, nullptr, nullptr);
}

Maker unit_call(void (*before)(const MadeUnit&), fsccl_status_t (*run)(const MadeUnit&),
                const UnitCase& c) {
  return [=](const Child& self, fsccl_comm_t world) {
    const auto made = std::make_shared<MadeUnit>(c, self, world);
    must_do(made->create(), "unit_create");
    Call call;
    call.comm = made->comm();
    call.before = [=] { before(*made); };
    call.run = [=] { return run(*made); };
    call.give_back = [=] { made->destroy(); };
    return call;
  };
}

}  // namespace

const NamedCalls& operations() {
  using Floats = std::vector<float>;
  static const size_t counts[kRanks] = {kCount, 7, kCount, kCount};
  static const NamedCalls made = {
      {"all_gather", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         return fsccl_all_gather(own.data(), all.data(), kCount, FSCCL_FLOAT32, comm, nullptr,
                                 nullptr);
       })},
      {"reduce_scatter", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         return fsccl_reduce_scatter(all.data(), own.data(), kCount, FSCCL_BFLOAT16, FSCCL_SUM,
                                     comm, nullptr, nullptr);
       })},
      {"all_reduce", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         return fsccl_all_reduce(all.data(), own.data(), kCount, FSCCL_FLOAT32, FSCCL_AVG, comm,
                                 nullptr, nullptr);
       })},
      {"all_reduce of bf16", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         return fsccl_all_reduce(all.data(), own.data(), kCount, FSCCL_BFLOAT16, FSCCL_SUM, comm,
                                 nullptr, nullptr);
       })},
      {"broadcast", collective([](Floats& all, Floats&, fsccl_comm_t comm) {
         return fsccl_broadcast(all.data(), kCount, FSCCL_FLOAT32, 1, comm, nullptr, nullptr);
       })},
      {"all_gather_list", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         const fsccl_tensor_t tensor{own.data(), all.data(), counts, FSCCL_FLOAT32};
         return fsccl_all_gather_list(&tensor, 1, comm, nullptr, nullptr);
       })},
      {"reduce_scatter_list", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         const fsccl_tensor_t tensor{all.data(), own.data(), counts, FSCCL_FLOAT32};
         return fsccl_reduce_scatter_list(&tensor, 1, FSCCL_SUM, comm, nullptr, nullptr);
       })},
      {"broadcast_list", collective([](Floats& all, Floats&, fsccl_comm_t comm) {
         const fsccl_tensor_t tensor{nullptr, all.data(), counts, FSCCL_FLOAT32};
         return fsccl_broadcast_list(&tensor, 1, 2, comm, nullptr, nullptr);
       })},
      {"unshard", unit_call(nothing, unshard, {})},
      {"unshard with differences", unit_call(nothing, unshard, {.gather = &kDifferences})},
      {"unshard with blocks", unit_call(nothing, unshard, {.gather = &kMxfp8})},
      {"reshard", unit_call(unshard_before, reshard, {})},
      {"reduce_grads", unit_call(take_grads, reduce_grads, {})},
      {"reduce_grads with blocks", unit_call(take_grads, reduce_grads, {.sums = &kInt8})},
      {"reduce_grads of replicas", unit_call(take_grads, reduce_grads, {.replicas = true})},
  };
  return made;
}

}  // namespace fsccl::testing
