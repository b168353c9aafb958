// Random calls, and the fields of an operation's fingerprint in which two calls can differ.
#pragma once
#include <fmt/format.h>

#include "plan/fingerprint.h"
#include "support.h"

namespace fsccl::testing {

// The fields in which two calls can differ. If the fingerprint gets a new field, this file does not
// compile until the field is added here and in differ().
enum class Field { op, dtype, kind, flags, root, count, sequence, history };
constexpr bool all_fields_are_known() {
  [[maybe_unused]] const auto [op, dtype, kind, flags, root, count, sequence, history] =
      Fingerprint{};
  return true;
}
static_assert(all_fields_are_known());

enum Operation {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kAllGatherV,
  kReduceScatterV,
  kAllToAllV,
  kAllGatherList,
  kReduceScatterList,
  kBroadcastList,
  kOperations
};
inline constexpr const char* kNames[] = {"all_gather",       "reduce_scatter",
                                         "all_reduce",       "broadcast",
                                         "reduce",           "gather",
                                         "scatter",          "all_to_all",
                                         "barrier",          "all_gather_v",
                                         "reduce_scatter_v", "all_to_all_v",
                                         "all_gather_list",  "reduce_scatter_list",
                                         "broadcast_list"};
inline constexpr size_t kMost = 3000;  // elements of a rank's part
inline constexpr size_t kMostTensors = 4;

inline bool sums(int op) {
  return op == kReduceScatter || op == kAllReduce || op == kReduce || op == kReduceScatterV ||
         op == kReduceScatterList;
}
inline bool rooted(int op) { return (op >= kBroadcast && op <= kScatter) || op == kBroadcastList; }
inline bool in_parts(int op) { return op == kAllGatherV || op == kReduceScatterV; }
inline bool of_a_list(int op) { return op >= kAllGatherList; }

struct Call {
  int op = 0;
  int ranks = 1;
  size_t count = 0;
  fsccl_dtype_t dtype = FSCCL_FLOAT32;
  fsccl_op_kind_t kind = FSCCL_OP_SUM;
  double scale = 1;  // scale of FSCCL_OP_PREMUL_SUM
  int root = 0;
  int longer = 0;      // in forms with parts and lists: the rank whose part has one element more
  size_t tensors = 1;  // tensors of a list
};

inline bool floats(fsccl_dtype_t dtype) { return dtype != FSCCL_INT32; }

inline Call random_call(Random& random, int ranks) {
  Call call;
  call.op = static_cast<int>(random.below(kOperations));
  call.ranks = ranks;
  call.count = 1 + random.below(random.below(2) ? 20 : kMost - 1);
  const fsccl_dtype_t dtypes[] = {FSCCL_FLOAT32, FSCCL_FLOAT64, FSCCL_INT32, FSCCL_BFLOAT16};
  call.dtype = dtypes[random.below(4)];
  call.kind = static_cast<fsccl_op_kind_t>(random.below(floats(call.dtype) ? 6 : 5));
  call.root = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
  call.longer = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
  call.tensors = 1 + random.below(kMostTensors - 1);
  return call;
}

// Returns the number of elements that the largest call of `ranks` ranks needs: a part for each rank
// in each of kMostTensors tensors.
inline size_t most_elements(int ranks) {
  return kMostTensors * static_cast<size_t>(ranks) * (kMost + 2);
}

inline fsccl_status_t issue_list(const Call& c, const fsccl_op_t& op, const size_t* counts,
                                 fsccl_comm_t comm, double* in, double* out) {
  std::vector<fsccl_tensor_t> list;
  for (size_t t = 0; t < c.tensors; ++t) {
    const size_t at = t * static_cast<size_t>(c.ranks) * (kMost + 2);
    list.push_back({in + at, out + at, counts, t == 0 ? c.dtype : FSCCL_FLOAT32});
  }
  if (c.op == kAllGatherList)
    return fsccl_all_gather_list(list.data(), list.size(), comm, nullptr, nullptr);
  if (c.op == kReduceScatterList)
    return fsccl_reduce_scatter_list(list.data(), list.size(), op, comm, nullptr, nullptr);
  return fsccl_broadcast_list(list.data(), list.size(), c.root, comm, nullptr, nullptr);
}

inline fsccl_status_t issue(const Call& c, fsccl_comm_t comm, std::vector<double>& in,
                            std::vector<double>& out) {
  const fsccl_op_t op = {c.kind, 0, c.scale};
  void *send = in.data(), *recv = out.data();
  // Each rank has a part of `count` elements. In forms with parts and in lists one rank's part has
  // one element more. In a broadcast of a list, which has no parts, `longer` changes the count.
  const auto ranks = static_cast<size_t>(c.ranks);
  std::vector<size_t> even(ranks, c.count), counts = even, begins;
  counts[of_a_list(c.op) && c.op == kBroadcastList ? 0 : static_cast<size_t>(c.longer)] += 1;
  if (c.op == kBroadcastList) counts[0] += static_cast<size_t>(c.longer);
  for (size_t q = 0; q < ranks; ++q) begins.push_back(q * c.count);
  switch (c.op) {
    case kAllGather:
      return fsccl_all_gather(send, recv, c.count, c.dtype, comm, nullptr, nullptr);
    case kReduceScatter:
      return fsccl_reduce_scatter(send, recv, c.count, c.dtype, op, comm, nullptr, nullptr);
    case kAllReduce:
      return fsccl_all_reduce(send, recv, c.count, c.dtype, op, comm, nullptr, nullptr);
    case kBroadcast:
      return fsccl_broadcast(recv, c.count, c.dtype, c.root, comm, nullptr, nullptr);
    case kReduce:
      return fsccl_reduce(send, recv, c.count, c.dtype, op, c.root, comm, nullptr, nullptr);
    case kGather:
      return fsccl_gather(send, recv, c.count, c.dtype, c.root, comm, nullptr, nullptr);
    case kScatter:
      return fsccl_scatter(send, recv, c.count, c.dtype, c.root, comm, nullptr, nullptr);
    case kAllToAll:
      return fsccl_all_to_all(send, recv, c.count, c.dtype, comm, nullptr, nullptr);
    case kBarrier:
      return fsccl_barrier(comm, nullptr, nullptr);
    case kAllGatherV:
      return fsccl_all_gather_v(send, recv, counts.data(), nullptr, c.dtype, comm, nullptr,
                                nullptr);
    case kReduceScatterV:
      return fsccl_reduce_scatter_v(send, recv, counts.data(), c.dtype, op, comm, nullptr, nullptr);
    case kAllToAllV:
      return fsccl_all_to_all_v(send, even.data(), begins.data(), recv, even.data(), begins.data(),
                                c.dtype, comm, nullptr, nullptr);
    default:
      return issue_list(c, op, counts.data(), comm, in.data(), out.data());
  }
}

inline int another(int now, int bound, Random& random) {
  return (now + 1 + static_cast<int>(random.below(static_cast<uint64_t>(bound - 1)))) % bound;
}
inline fsccl_dtype_t another(fsccl_dtype_t now) {
  return now == FSCCL_FLOAT32   ? FSCCL_FLOAT64
         : now == FSCCL_FLOAT64 ? FSCCL_BFLOAT16
                                : FSCCL_FLOAT32;
}

// Changes `call` so that it differs in `field`. If a field can differ in several ways, `way`
// chooses one. Returns false if the operation does not have the field.
inline bool differ(Field field, uint64_t way, Call* call, Random& random) {
  switch (field) {
    case Field::op:
    case Field::sequence:
      call->op = another(call->op, kOperations, random);
      return true;
    case Field::dtype:
      call->dtype = another(call->dtype);
      return call->op != kBarrier && !of_a_list(call->op) && floats(call->dtype);
    case Field::kind:
      call->kind =
          static_cast<fsccl_op_kind_t>(another(call->kind, floats(call->dtype) ? 6 : 5, random));
      return sums(call->op);
    case Field::root:
      call->root = another(call->root, call->ranks, random);
      return rooted(call->op);
    case Field::count:
      if (of_a_list(call->op)) return call->tensors += 1, true;
      call->count = call->count > 1 && random.below(2) ? call->count - 1 : call->count + 1;
      return call->op != kBarrier && call->op != kAllToAllV;
    case Field::history:
      // The history also describes further arguments of a call: the scale of the operator, the
      // types of a list's tensors, or the ranks' parts. Other tests have the arguments of units.
      if (way % 3 == 0) {
        call->scale = 1 + 0x1p-52;
        return sums(call->op) && call->kind == FSCCL_OP_PREMUL_SUM;
      }
      if (way % 3 == 1) {
        call->dtype = another(call->dtype);
        return of_a_list(call->op);
      }
      call->longer = another(call->longer, call->ranks, random);
      return in_parts(call->op) || of_a_list(call->op);
    case Field::flags:  // only operations of units have flags
      return false;
  }
  return false;
}

// Returns the word by which the error names the field.
inline const char* word_of(Field field) {
  switch (field) {
    case Field::op:
    // One rank has left out a call, so its next call meets the others' call that it has left out.
    case Field::sequence:
      return "they differ in operation";
    case Field::dtype:
      return "dtype";
    case Field::kind:
      return "operator";
    case Field::flags:
      return "mode";
    case Field::root:
      return "root";
    case Field::count:
      return "they differ in count";
    case Field::history:
      return "scale)";  // the last of the arguments that the error lists
  }
  return "nothing";
}

// Returns the same, but for the field `history` the words for the arguments that this kind of call
// has.
inline const char* word_of(Field field, const Call& call) {
  if (field != Field::history) return word_of(field);
  return of_a_list(call.op)  ? "the types or parts of the tensors"
         : in_parts(call.op) ? "the counts of the ranks' parts"
                             : "the scale of fsccl_premul_sum()";
}

// Returns the words with which the error describes a call.
inline std::string words_of(const Call& call) {
  if (call.op == kBarrier) return "barrier (operation";
  return of_a_list(call.op) ? fmt::format("{} of {} tensors", kNames[call.op], call.tensors)
                            : fmt::format("{} of ", kNames[call.op]);
}

}  // namespace fsccl::testing
