// The state that the communicators of one job share on this rank.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/config.h"
#include "bootstrap/job.h"
#include "engine/arena_table.h"
#include "kernels/start.h"
#include "record/metrics_file.h"
#include "record/recorder.h"
#include "select/rules.h"
#include "select/tuning_file.h"
#include "topo/seat.h"
#include "transports/transport.h"

namespace fsccl {

class Communicator;

class JobContext {
 public:
  static Result<std::shared_ptr<JobContext>> join(const JoinRequest& request);
  ~JobContext();

  Job& job() { return *job_; }
  ArenaTable& arenas() { return arenas_; }
  Recorder& recorder() { return *recorder_; }
  // Writes the metrics a last time, before the objects that they describe end.
  void write_metrics() {
    if (metrics_file_) metrics_file_->write();
  }
  void add(Communicator* comm);
  void remove(Communicator* comm);
  // Returns the first of these ranks whose death this rank has learned of, or -1 if none has died.
  // Ranks that end because of that death come later.
  int first_dead(const std::vector<int>& ranks);
  // Returns how many of these ranks share a core of the cores that they may run on (affinity), on
  // the host where the number is largest. It is at least two if the process of some rank of the job
  // was already a rank of such a communicator when the job was joined, because its cores are then
  // shared. The same on all ranks.
  double ranks_per_core(const std::vector<int>& ranks) const;
  uint32_t next_arena_number() { return arena_numbers_++; }
  bool one_host(const std::vector<int>& ranks) const;
  // Returns the transport that moves bytes between these ranks.
  Result<const Transport*> transport_for(const std::vector<int>& ranks) const;
  TransportNode* node() const { return node_.get(); }
  // fsccl/transport.h explains keeps_pages.
  bool network_keeps_pages() const { return node_ && network_->keeps_pages(); }
  // Returns FSCCL_CHECKSUM, as it was on all ranks when the job was joined.
  bool checksum() const { return checksum_; }

  // Returns the number of hosts of these ranks, and the number of ranks on each.
  HostShape host_shape(const std::vector<int>& ranks) const;
  // Returns the class of the link between two of them.
  topo::LinkClass link(int a, int b) const;
  // Returns the member that is farthest from the first one.
  int farthest(const std::vector<int>& ranks) const;
  // Returns the rules of FSCCL_PLAN as it is now, and then those of the tuning file as it was when
  // the job was joined.
  Result<std::shared_ptr<const std::vector<Rule>>> rules() const;
  // Returns the times of algorithms on GPUs in the tuning file; may be null.
  std::shared_ptr<const std::vector<NativePrice>> native_prices() const;
  // Returns the costs that the tuning file has for a communicator of these ranks, or null.
  const Costs* known_costs(const std::vector<int>& ranks, std::string_view transport) const;

 private:
  struct Facts {
    uint64_t words[16];                                    // 1024 processors
    uint32_t taken;                                        // see ranks_per_core()
    uint8_t transport, hierarchy, reproducible, checksum;  // must be the same on all ranks
    uint8_t network, ucx_path;                             // must be the same on all ranks
    // 1: this rank would use UCX between hosts (transports.h)
    uint8_t fast_network;
    // 1: FSCCL_PLAN, FSCCL_KERNELS or the tuning file cannot be used on this rank
    uint8_t unreadable;
    // 1: FSCCL_TRANSPORT_PLUGIN is set; must be the same on all ranks
    uint8_t plugin;
    uint64_t plan, tuning;             // hashes that must be the same on all ranks
    int64_t heartbeat_ms, slot_bytes;  // must be the same on all ranks
    uint64_t machine;                  // hash of the machine's name
    topo::Seat seat;
    KernelChoice kernels;  // the choice of the first rank of a host counts
    uint8_t salt[kKeyBytes];
  };
  Status load_choices(Facts* mine);
  Status compare(const Facts& mine, size_t rank) const;
  Status meet(Deadline deadline);
  int chooses_kernels() const;
  void take_kernels(KernelStart found);
  std::vector<int> all_ranks() const;
  size_t cores_of(const std::vector<int>& ranks) const;
  const char* network_name() const;
  Status join_network(Deadline deadline);
  static Status fits(const Transport& network, const TransportNode& node);
  std::string silence_of(int rank) const;
  void on_loss(int rank, bool left);
  void on_life(int rank, const PeerLife& life);

  std::shared_ptr<Job> job_;
  ArenaTable arenas_;
  std::unique_ptr<Recorder> recorder_;
  int look_hook_ = -1;
  std::unique_ptr<MetricsFile> metrics_file_;  // may be null
  // The transport between hosts, if the job has one, and its node.
  const Transport* network_ = nullptr;
  std::unique_ptr<TransportNode> node_;
  TransportChoice choice_ = TransportChoice::kAuto;
  std::vector<Facts> facts_;  // facts of each rank
  Tuning tuning_;
  std::string machine_;  // the machine's name, if the tuning file asks for it
  bool taken_ = false;
  bool checksum_ = false;
  std::atomic<uint32_t> arena_numbers_{0};
  std::atomic<bool> lost_{false};
  std::mutex mutex_;
  std::vector<Communicator*> communicators_;
  std::vector<uint8_t> lost_ranks_;  // by rank: 0 not lost, 1 died, 2 left
  std::vector<int> deaths_;          // in the order in which this rank learned of them
};

// The number of communicators of this process that exist and have more ranks than cores.
extern std::atomic<int> oversubscribed_communicators;

}  // namespace fsccl
