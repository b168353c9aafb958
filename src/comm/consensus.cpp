#include "comm/consensus.h"

namespace fsccl {

Status gather(Communicator& comm, const void* mine, void* all, uint64_t bytes) {
  CollectiveCall call;
  call.op = OpCode::all_gather;
  call.input = mine;
  call.output = all;
  call.count = bytes;
  fsccl_status_t state;
  return comm.collectives().run(call, true, &state);
}

}  // namespace fsccl
