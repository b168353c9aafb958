// Compares collectives on device buffers with the same collectives on host buffers, over the
// transport that the library chooses and over each transport that a setting names. Values are small
// whole numbers, whose sums are exact in any order, so NCCL's results have the same bits.
#include <fsccl/insight.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>
#include <string_view>
#include <vector>

#include "gpu/support.h"

namespace fsccl::testing {
namespace {

constexpr size_t kCounts[] = {1, 3, 1000, 262'147};

struct Buffers {
  const Gpu& gpu;
  void* stream;
  std::vector<float> host_send, host_recv;
  float *send, *recv;

  Buffers(const Gpu& device, size_t elements)
      : gpu(device),
        stream(device.make_stream()),
        host_send(elements),
        host_recv(elements),
        send(static_cast<float*>(device.allocate(elements * sizeof(float)))),
        recv(static_cast<float*>(device.allocate(elements * sizeof(float)))) {}

  // Writes the same contents to host and device buffers. On the stream they are written late, so a
  // call that read them before its turn on the stream would not see them.
  bool fill(int rank) {
    for (size_t i = 0; i < host_send.size(); i++)
      host_send[i] = static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 11);
    std::fill(host_recv.begin(), host_recv.end(), -1.0f);
    const size_t bytes = host_send.size() * sizeof(float);
    return gpu.copy(send, host_send.data(), bytes, stream) &&
           gpu.copy(recv, host_recv.data(), bytes, stream);
  }
  bool equal(size_t elements) const { return same(recv, host_recv, elements); }
  bool equal_in_place(size_t elements) const { return same(send, host_send, elements); }
  bool same(const float* device, const std::vector<float>& host, size_t elements) const {
    const auto found = gpu.read<float>(device, elements, stream);
    return found.size() == elements && std::equal(found.begin(), found.end(), host.begin());
  }
};

int all(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  const auto ranks = static_cast<size_t>(place.ranks);
  const fsccl_comm_t comm = place.comm;
  const fsccl_dtype_t type = FSCCL_FLOAT32;
  Buffers b(*place.gpu, kCounts[3] * ranks);
  MUST(b.fill(place.rank));
  if (const int code = outcome("first all-gather",
                               fsccl_all_gather(b.send, b.recv, 1, type, comm, b.stream, nullptr)))
    return code;
  for (const size_t n : kCounts) {
    MUST(b.fill(place.rank) && fsccl_all_gather(b.host_send.data(), b.host_recv.data(), n, type,
                                                comm, nullptr, nullptr) == 0);
    MUST(fsccl_all_gather(b.send, b.recv, n, type, comm, b.stream, nullptr) == 0 &&
         b.equal(n * ranks));
    for (const fsccl_op_t op : {FSCCL_SUM, FSCCL_MAX, FSCCL_AVG}) {
      MUST(b.fill(place.rank) && fsccl_reduce_scatter(b.host_send.data(), b.host_recv.data(), n,
                                                      type, op, comm, nullptr, nullptr) == 0);
      MUST(fsccl_reduce_scatter(b.send, b.recv, n, type, op, comm, b.stream, nullptr) == 0 &&
           b.equal(n));
      MUST(b.fill(place.rank) && fsccl_all_reduce(b.host_send.data(), b.host_recv.data(), n, type,
                                                  op, comm, nullptr, nullptr) == 0);
      MUST(fsccl_all_reduce(b.send, b.recv, n, type, op, comm, b.stream, nullptr) == 0 &&
           b.equal(n));
    }
    const int root = place.ranks - 1;
    MUST(b.fill(place.rank) &&
         fsccl_broadcast(b.host_send.data(), n, type, root, comm, nullptr, nullptr) == 0);
    MUST(fsccl_broadcast(b.send, n, type, root, comm, b.stream, nullptr) == 0 &&
         b.equal_in_place(n));
    MUST(b.fill(place.rank) && fsccl_all_to_all(b.host_send.data(), b.host_recv.data(), n, type,
                                                comm, nullptr, nullptr) == 0);
    MUST(fsccl_all_to_all(b.send, b.recv, n, type, comm, b.stream, nullptr) == 0 &&
         b.equal(n * ranks));
    MUST(b.fill(place.rank) && fsccl_reduce(b.host_send.data(), b.host_recv.data(), n, type,
                                            FSCCL_SUM, root, comm, nullptr, nullptr) == 0);
    MUST(fsccl_reduce(b.send, b.recv, n, type, FSCCL_SUM, root, comm, b.stream, nullptr) == 0);
    MUST(place.rank == root ? b.equal(n) : place.gpu->wait(b.stream));
  }
  MUST(fsccl_barrier(comm, b.stream, nullptr) == 0 && place.gpu->wait(b.stream));
  return place.end() ? 0 : 1;
}

// Calls the forms with uneven parts, and passes messages around a ring.
int uneven(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  const auto ranks = static_cast<size_t>(place.ranks), mine = static_cast<size_t>(place.rank);
  const fsccl_comm_t comm = place.comm;
  const fsccl_dtype_t type = FSCCL_FLOAT32;
  std::vector<size_t> counts(ranks);
  for (size_t rank = 0; rank < ranks; rank++) counts[rank] = rank == 1 ? 0 : 1000 * rank + 17;
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  Buffers b(*place.gpu, total);
  MUST(b.fill(place.rank));
  MUST(fsccl_all_gather_v(b.host_send.data(), b.host_recv.data(), counts.data(), nullptr, type,
                          comm, nullptr, nullptr) == 0);
  if (const int code =
          outcome("all_gather_v", fsccl_all_gather_v(b.send, b.recv, counts.data(), nullptr, type,
                                                     comm, b.stream, nullptr)))
    return code;
  MUST(b.equal(total) && b.fill(place.rank));
  MUST(fsccl_reduce_scatter_v(b.host_send.data(), b.host_recv.data(), counts.data(), type,
                              FSCCL_SUM, comm, nullptr, nullptr) == 0);
  MUST(fsccl_reduce_scatter_v(b.send, b.recv, counts.data(), type, FSCCL_SUM, comm, b.stream,
                              nullptr) == 0);
  MUST(b.equal(counts[mine]) && b.fill(place.rank));
  const int next = (place.rank + 1) % place.ranks,
            last = (place.rank + place.ranks - 1) % place.ranks;
  MUST(fsccl_group_start() == 0 &&
       fsccl_send(b.send, 17, type, next, 5, comm, b.stream, nullptr) == 0);
  MUST(fsccl_recv(b.recv, 17, type, last, 5, comm, b.stream, nullptr) == 0 &&
       fsccl_group_end() == 0);
  const auto found = b.gpu.read<float>(b.recv, 17, b.stream);
  for (size_t i = 0; i < 17; i++)
    MUST(found[i] == static_cast<float>((i * 7 + static_cast<size_t>(last) * 3) % 11));
  return place.end() ? 0 : 1;
}

size_t times(std::string_view text, std::string_view what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) found++;
  return found;
}

// Returns the contents of this process's flight recorder.
std::string recorded() {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("fsccl_plans_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::string text;
  if (fsccl_trace_dump(folder.c_str()) == FSCCL_OK)
    for (const auto& file : std::filesystem::directory_iterator(folder))
      (void)fsccl_trace_read(
          file.path().c_str(),
          [](void* to, const char* json, size_t bytes) {
            static_cast<std::string*>(to)->append(json, bytes);
          },
          &text);
  std::filesystem::remove_all(folder);
  return text;
}

// Checks that the plan which fsccl_explain() prints has the steps that the flight recorder has
// recorded.
int plans(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  constexpr size_t kCount = 1000;
  Buffers b(*place.gpu, kCount * static_cast<size_t>(place.ranks));
  MUST(b.fill(place.rank));
  if (const int code =
          outcome("first all-reduce", fsccl_all_reduce(b.send, b.recv, kCount, FSCCL_BFLOAT16,
                                                       FSCCL_SUM, place.comm, b.stream, nullptr)))
    return code;
  for (int i = 0; i < 2; i++)
    MUST(fsccl_all_reduce(b.send, b.recv, kCount, FSCCL_BFLOAT16, FSCCL_SUM, place.comm, b.stream,
                          nullptr) == 0);
  MUST(fsccl_all_gather(b.send, b.recv, 10, FSCCL_FLOAT32, place.comm, b.stream, nullptr) == 0 &&
       place.gpu->wait(b.stream));
  std::vector<char> json(1 << 16);
  MUST(fsccl_explain(place.comm, "all_reduce", 2 * kCount, json.data(), json.size()) == 0);
  const std::string text(json.data());
  const size_t narrow = text.find("\"bfloat16\"", text.find("\"candidates\":{"));
  MUST(narrow != text.npos && text.find("\"plan\":\"all_reduce_", narrow) != text.npos);
  const std::string_view plan = std::string_view(text).substr(narrow);
  const size_t steps = times(plan, "\"native by ");
  const std::string record = recorded();
  MUST(steps > 0 && times(record, "\"event\":\"native\"") == 3 * steps + 1);
  for (const std::string way : {"nccl", "ucx", "summed", "staged"})
    MUST(times(plan, "\"native by " + way) == 0 || times(record, "\"by\":\"" + way + "\"") > 0);
  return place.end() ? 0 : 1;
}

int wrong_use(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  Buffers b(*place.gpu, 100);
  fsccl_work_t work = nullptr;
  MUST(b.fill(place.rank));
  const fsccl_status_t status =
      fsccl_all_reduce(b.send, b.recv, 10, FSCCL_FLOAT32, FSCCL_SUM, place.comm, b.stream, &work);
  MUST(status == FSCCL_ERR_NOT_AVAILABLE && last_error().find("event") != std::string::npos);
  MUST(fsccl_all_reduce(b.send, b.host_recv.data(), 10, FSCCL_FLOAT32, FSCCL_SUM, place.comm,
                        b.stream, nullptr) < 0);
  return place.gpu->wait(b.stream) && place.end() ? 0 : 1;
}

TEST(GpuCollectives, AsChosen) { run_ranks("all", 2, 20330); }
TEST(GpuCollectives, AsChosenByThree) { run_ranks("all", 3, 20331); }
TEST(GpuCollectives, Staged) { run_ranks("all", 2, 20332, by("staged")); }
TEST(GpuCollectives, StagedUneven) { run_ranks("uneven", 3, 20333, by("staged")); }
TEST(GpuCollectives, Nccl) { run_ranks("all", 2, 20334, by("nccl")); }
TEST(GpuCollectives, NcclByFour) { run_ranks("all", 4, 20341, by("nccl")); }
TEST(GpuCollectives, NcclUneven) { run_ranks("uneven", 3, 20335, by("nccl")); }
TEST(GpuCollectives, Ucx) { run_ranks("all", 3, 20337, by("ucx")); }
TEST(GpuCollectives, UcxUneven) { run_ranks("uneven", 3, 20338, by("ucx")); }
TEST(GpuCollectives, ThePlanIsWhatRuns) { run_ranks("plans", 2, 20342); }
TEST(GpuCollectives, ThePlanIsWhatRunsByNccl) { run_ranks("plans", 2, 20343, by("nccl")); }
TEST(GpuCollectives, ThePlanIsWhatRunsByUcx) { run_ranks("plans", 3, 20344, by("ucx")); }
TEST(GpuCollectives, ThePlanIsWhatRunsStaged) { run_ranks("plans", 2, 20345, by("staged")); }
TEST(GpuCollectives, WrongUseIsRefused) { run_ranks("wrong_use", 2, 20336, by("staged")); }

}  // namespace
}  // namespace fsccl::testing

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  if (const auto code =
          run_role(argc, argv,
                   {{"all", all}, {"uneven", uneven}, {"plans", plans}, {"wrong_use", wrong_use}}))
    return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
