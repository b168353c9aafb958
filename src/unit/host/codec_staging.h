// The staging memory of a lane, in the pool. It holds coded bytes between the codec and the
// transport, in one area for bytes that a rank sends and in one for bytes that it receives. All
// units of the lane share it, because their gathers and sums run one after the other. They also
// share what they know of the lane.
#pragma once
#include <atomic>
#include <memory>

#include "codec/blocks.h"
#include "codec/choice.h"
#include "record/metrics.h"
#include "unit/host/delta_copies.h"

namespace fsccl {

class CodecStaging {
 public:
  // Returns the staging of the units of `lane` in `pool`. The first unit makes it; it ends with the
  // last.
  static std::shared_ptr<CodecStaging> of(HostPool& pool, Communicator& lane);
  ~CodecStaging();
  CodecStaging(const CodecStaging&) = delete;
  CodecStaging& operator=(const CodecStaging&) = delete;

  // Makes the areas at least so long. No gather of the lane may be under way.
  // FSCCL_ERR_OUT_OF_MEMORY: the pool has no room.
  Status reserve(uint64_t send_bytes, uint64_t receive_bytes);

  uint8_t* sent() const { return sent_.at; }
  uint8_t* received() const { return received_.at; }
  uint64_t bytes() const { return bytes_; }  // any thread
  LinkCosts link;  // costs of the links of the thread that drives the lane
  DeltaCopies::Workspace work;
  std::vector<float> sums, mine;  // elements of a chunk of a reduction, if the lane has any

  // Counts of this rank over all gathers and sums of the lane, for fsccl_metrics. One thread at a
  // time adds to them.
  struct Totals {
    std::atomic<uint64_t> coded{0}, plain{0}, declined{0}, mended{0}, plain_bytes{0}, sent_bytes{0};
    std::atomic<uint64_t> blocks{0}, exact_blocks{0}, audited_blocks{0}, beyond_bound{0};
    std::atomic<float> largest_error{0};
    std::atomic<uint64_t> reduce_plain_bytes{0}, reduce_sent_bytes{0};
  };
  Totals totals;
  void count_blocks(const BlocksWritten& written);

 private:
  struct Area {
    uint8_t* at = nullptr;
    uint64_t bytes = 0;
  };
  CodecStaging(HostPool& pool, Communicator& lane);
  void tell(MetricSamples& samples, std::string_view id, const Communicator& lane) const;
  Status enlarge(Area* area, uint64_t bytes);

  HostPool& pool_;
  Area sent_, received_;
  std::atomic<uint64_t> bytes_{0};  // the bytes of both areas
  std::unique_ptr<MetricsSource> metrics_;
};

}  // namespace fsccl
