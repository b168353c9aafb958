#include "comm/device/collectives.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/log.h"
#include "comm/consensus.h"
#include "comm/device/drain.h"
#include "comm/device/nccl_collectives.h"
#include "comm/together.h"

namespace fsccl {
namespace {

constexpr size_t kScratchBytes = 8;
constexpr int64_t kLongestStartMs = 120'000, kCollectiveNapNs = 100'000;

// The outcome on this rank, for the other ranks.
struct Outcome {
  int32_t code = FSCCL_OK;
  uint8_t reaches = 0;
  char text[251] = "";  // the error; without one, the setting that switches windows off
};

}  // namespace

DeviceCollectives& DeviceCollectives::of(Communicator& comm) {
  if (!comm.device_collectives) comm.device_collectives.reset(new DeviceCollectives(comm));
  return *comm.device_collectives;
}

DeviceCollectives::~DeviceCollectives() {
  watch_.reset();
  ucx_.reset();
  bool over = true;
  for (std::unique_ptr<nccl::Communicator>* one : {&copier_, &nccl_}) {
    if (*one && comm_.engine().failed()) (*one)->end(comm_.engine().failure());
    if (*one) over &= (*one)->finish();
    one->reset();
  }
  if (!over) (void)exchanged_sum_.release();  // freeing memory waits for the device
  exchanged_sum_.reset();
  if (!scratch_ || !over) return;
  const cuda::Current current(*device_);
  (void)device_->driver().cuMemFree(scratch_);
}

Status DeviceCollectives::finish(const cuda::OwnedEvent& event) const {
  const cuda::Current current(*device_);
  const auto over = [&] { return event.complete(); };
  const Result<bool> in_time =
      wait_unless([this] { return intact(); }, over, Deadline::never(), Naps(kCollectiveNapNs));
  if (in_time.ok()) return success();
  if (wait_until(over, Deadline::in_ms(kDrainMs), kNothingBreaks, Naps(kCollectiveNapNs)) ==
      WaitEnd::held)
    return success();
  return in_time.status().clone();
}

Status DeviceCollectives::check_captures(int ordinal, const std::vector<DeviceCall>& calls) {
  const cuda::Device* device = device_;
  if (!device || device->ordinal() != ordinal) {
    FSCCL_ASSIGN(device, cuda::Device::open(ordinal));
  }
  const cuda::Current current(*device);
  size_t captured = 0;
  for (const DeviceCall& call : calls) {
    FSCCL_ASSIGN(const bool capturing, device->capturing(call.stream));
    if (!capturing) continue;
    captured++;
    if (!prepared() && !comm_.engine().options().inside)
      return fail(FSCCL_ERR_NOT_AVAILABLE,
                  "{}: the stream is being captured, and the first call of communicator {} on a "
                  "GPU starts NCCL, or finds that it "
                  "is not there: call one before the capture",
                  op_name(call.op), comm_.name());
    const Algorithm algorithm = kept(call).algorithm;
    if (algorithm == Algorithm::staged || ucx_)
      return fail(FSCCL_ERR_NOT_AVAILABLE,
                  "{} goes {} here, which a graph cannot capture (fsccl_explain says why): call it "
                  "outside of the capture",
                  op_name(call.op),
                  algorithm == Algorithm::staged ? "through host memory" : "by UCX");
    if (algorithm == Algorithm::summed)
      return fail(FSCCL_ERR_NOT_AVAILABLE,
                  "{} of {} is summed in memory of communicator {}, which a graph's replays would "
                  "share with other calls: sum "
                  "float32, or call it outside of the capture",
                  op_name(call.op), dtype_name(call.dtype), comm_.name());
  }
  if (captured && captured < calls.size())
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} of {} calls of a group on communicator {} are on streams that are being "
                "captured: NCCL takes all of them into "
                "graphs, or none. Put them into groups of their own",
                captured, calls.size(), comm_.name());
  return success();
}

Status DeviceCollectives::prepare(int ordinal) {
  if (comm_.engine().failed()) return comm_.engine().failure();
  if (device_ && device_->ordinal() != ordinal)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "communicator {} works with device {}, and this is memory of device {}: split one "
                "off for another device",
                comm_.name(), device_->ordinal(), ordinal);
  if (device_) return success();
  FSCCL_ASSIGN(const cuda::Device* device, cuda::Device::open(ordinal));
  // The ranks cannot agree on the communicator of messages from one rank to another
  // (Communicator::pair): it sends in one direction only, and an answer in the other direction
  // could be mistaken for a message of the program.
  if (!comm_.engine().options().inside) FSCCL_TRY(agree(*device));
  forget_plans();  // no algorithm could be chosen for a call before this one
  device_ = device;
  return success();
}

// Every rank takes part in every exchange, even if something failed on it, so that all ranks know
// and none waits.
Status DeviceCollectives::agree(const cuda::Device& device) {
  const Together together(comm_);
  const DeviceTerms mine = device_terms(device, comm_.rank());
  FSCCL_ASSIGN(const std::vector<DeviceTerms> terms, all_gather(comm_, mine));
  std::vector<uint64_t> hosts;
  for (int rank = 0; rank < comm_.size(); rank++)
    hosts.push_back(comm_.context().job().member(comm_.job_rank(rank)).host);
  one_host_ = comm_.one_host();
  FSCCL_ASSIGN(decision_, decide(terms, hosts));
  if (decision_.nccl) FSCCL_TRY(agree_on_nccl(device, terms));
  if (decision_.nccl) return success();
  FSCCL_TRY(agree_on_exchanges(device, hosts));
  FSCCL_LOG(kInfo, "communicator {}: device memory goes {}: {}", comm_.name(),
            ucx_ ? "by UCX" : "through host memory", decision_.why);
  return success();
}

Status DeviceCollectives::agree_on_nccl(const cuda::Device& device,
                                        const std::vector<DeviceTerms>& terms) {
  device_ = &device;
  const Status started = start_nccl(terms[0].id);
  device_ = nullptr;
  Outcome own;
  own.code = started.code();
  own.reaches = peers_reachable(device, terms);
  (started.ok() ? nccl::windows_off() : started.text()).copy(own.text, sizeof own.text - 1);
  FSCCL_ASSIGN(std::vector<Outcome> outcomes, all_gather(comm_, own));
  decision_.facts.peer_access = true;
  for (size_t rank = 0; rank < outcomes.size(); rank++) {
    decision_.facts.peer_access &= outcomes[rank].reaches != 0;
    outcomes[rank].text[sizeof outcomes[rank].text - 1] = '\0';
    if (outcomes[rank].code == FSCCL_OK) {
      std::string& off = decision_.facts.windows_off;
      if (outcomes[rank].text[0] && off.empty())
        off = fmt::format("rank {}: {}", rank, outcomes[rank].text);
      continue;
    }
    if (!decision_.why.empty()) continue;
    decision_.why = fmt::format("NCCL did not start on rank {}: {}", rank, outcomes[rank].text);
    decision_.nccl = false;
  }
  features_ = nccl::features_of(decision_.facts);
  if (decision_.nccl) return success();
  watch_.reset();
  if (nccl_) nccl_->end(fail(FSCCL_ERR_NOT_AVAILABLE, "{}", decision_.why));
  nccl_.reset();
  if (decision_.asked == DeviceTransport::kNccl)
    return fail(FSCCL_ERR_NOT_AVAILABLE, "{}", decision_.why);
  FSCCL_LOG(kWarn, "communicator {}: device memory does not go by NCCL: {}", comm_.name(),
            decision_.why);
  return success();
}

// Is called if NCCL does not move the bytes.
Status DeviceCollectives::agree_on_exchanges(const cuda::Device& device,
                                             const std::vector<uint64_t>& hosts) {
  if (!tries_exchange(decision_, &why_not_ucx_)) return success();
  const cuda::Current current(device);
  const ExchangeTerms mine = exchange_terms();
  FSCCL_ASSIGN(const std::vector<ExchangeTerms> terms, all_gather(comm_, mine));
  why_not_ucx_ = obstacle_to_exchange(terms, hosts, decision_.asked);
  if (why_not_ucx_.empty()) {
    Result<std::unique_ptr<UcxCollectives>> made =
        UcxCollectives::create(comm_, device, [this] { return intact(); });
    if (!made.ok() && comm_.engine().failed()) return made.take_status();
    bool lasting = false;
    FSCCL_ASSIGN(why_not_ucx_, agree_on(made.ok() ? success() : made.take_status(), &lasting));
    if (why_not_ucx_.empty()) ucx_ = made.take();
  }
  if (!ucx_ && decision_.asked == DeviceTransport::kUcx)
    return fail(FSCCL_ERR_NOT_AVAILABLE, "FSCCL_DEVICE_TRANSPORT is ucx, which cannot be used: {}",
                why_not_ucx_);
  return success();
}

Result<std::unique_ptr<nccl::Communicator>> DeviceCollectives::open_nccl(
    const cuda::Device& device, const nccl::ncclUniqueId& id, bool copy_engines) {
  std::string why;
  nccl::Communicator::Request request;
  request.library = nccl::library(&why);
  request.device = &device;
  request.id = id;
  request.rank = comm_.rank();
  request.ranks = comm_.size();
  request.copy_engines = copy_engines;
  // The kernels of all ranks on a GPU, and of the two communicators of each rank, run at once,
  // because they wait for each other.
  if (decision_.ranks_on_gpu > 1)
    request.most_ctas = std::max(1, device.multiprocessors() / (2 * decision_.ranks_on_gpu));
  request.can_revoke = nccl::features_of(decision_.facts).revoke.usable;
  request.timeout_ms = comm_.timeout_ms();
  // A rank that cannot start waits for the others in the next exchange. Therefore their start must
  // end well before that wait does.
  request.start_ms = std::min(comm_.timeout_ms() / 2, kLongestStartMs);
  request.broken = [this] { return intact(); };
  request.refused = [this](const Status& reason) { comm_.engine().fail_all(reason.error()); };
  return nccl::Communicator::create(std::move(request));
}

Status DeviceCollectives::start_nccl(const nccl::ncclUniqueId& id) {
  FSCCL_ASSIGN(nccl_, open_nccl(*device_, id, false));
  const cuda::Current current(*device_);
  if (!scratch_)
    FSCCL_TRY(device_->check("cuMemAlloc", device_->driver().cuMemAlloc(&scratch_, kScratchBytes)));
  StreamWatch::Hooks hooks;
  hooks.look = [this] {
    Status trouble = intact();
    if (trouble.ok()) trouble = nccl_->look();
    const std::lock_guard lock(copier_mutex_);
    return trouble.ok() && copier_ ? copier_->look() : std::move(trouble);
  };
  hooks.end = [this](const Status& why_ended) {
    // This comes first: a rank whose streams are released may abort, and peers must get one reason.
    comm_.engine().fail_all(why_ended.error());
    nccl_->end(why_ended);
    const std::lock_guard lock(copier_mutex_);
    if (copier_) copier_->end(why_ended);
  };
  hooks.describe_late = [this] {
    return fmt::format("a collective on device memory of communicator {}", comm_.name());
  };
  FSCCL_ASSIGN(watch_, StreamWatch::create(*device_, comm_.timeout_ms(), std::move(hooks)));
  return success();
}

// A GPU of a peer that this process does not see may be reachable or not. NCCL refuses the window
// if it is not.
bool DeviceCollectives::peers_reachable(const cuda::Device& device,
                                        const std::vector<DeviceTerms>& terms) const {
  std::string why;
  const cuda::Driver& driver = device.driver();
  for (int ordinal = 0; ordinal < cuda::device_count(&why); ordinal++) {
    int other = 0, own = 0, can = 0;
    unsigned char uuid[16] = {};
    if (ordinal == device.ordinal() || driver.cuDeviceGet(&other, ordinal) != cuda::CUDA_SUCCESS ||
        driver.cuDeviceGet(&own, device.ordinal()) != cuda::CUDA_SUCCESS ||
        driver.cuDeviceGetUuid(uuid, other) != cuda::CUDA_SUCCESS)
      continue;
    const bool is_peer = std::any_of(terms.begin(), terms.end(), [&](const DeviceTerms& one) {
      return std::memcmp(one.device, uuid, sizeof uuid) == 0;
    });
    if (is_peer && (driver.cuDeviceCanAccessPeer(&can, own, other) != cuda::CUDA_SUCCESS || !can))
      return false;
  }
  return true;
}

Status DeviceCollectives::run_staged(const DeviceCall& call) {
  if (!staging_) {
    FSCCL_ASSIGN(staging_, Staging::create(comm_, *device_));
  }
  return staging_->run(call);
}

Status DeviceCollectives::run_exchanged_sum(const DeviceCall& call) {
  if (!exchanged_sum_) {
    FSCCL_ASSIGN(
        exchanged_sum_,
        ExchangedSum::create({*device_, comm_.engine(), comm_.size(), [this] { return intact(); },
                              [this](const DeviceCall& one) { return move({&one}); }}));
  }
  return exchanged_sum_->reduce_scatter(call, epilogue_of(call, comm_.size()));
}

// NCCL makes an average by multiplying each contribution by the rounded inverse of the number of
// ranks: of seven times 3 it makes 3.0000002. If the number is a power of two, that is exact.
bool DeviceCollectives::divides(const DeviceCall& call) const {
  const bool wide = call.dtype == FSCCL_FLOAT32 || call.dtype == FSCCL_FLOAT64;
  return reduces(call.op) && call.reduction.kind == FSCCL_OP_AVG && wide && decision_.kernels &&
         !std::has_single_bit(static_cast<unsigned>(comm_.size()));
}

// Divides the sum that NCCL leaves on this rank.
Status DeviceCollectives::divide(const DeviceCall& call) const {
  if (call.op == OpCode::reduce && call.root != comm_.rank()) return success();
  const bool part = call.op == OpCode::reduce_scatter;
  const uint64_t count = part ? call.receives[0].count : call.sends[0].count;
  const auto at = reinterpret_cast<cuda::CUdeviceptr>(part ? call.to(0) : call.output);
  FSCCL_ASSIGN(const cuda::DeviceKernels* kernels, cuda::DeviceKernels::of(*device_));
  return kernels->divide(at, count, call.dtype, comm_.size(), call.stream);
}

std::function<Status()> DeviceCollectives::issue(nccl::Communicator& by, Calls calls) {
  return [this, &by, calls = std::move(calls)] {
    const cuda::Current current(*device_);
    for (const DeviceCall* call : calls) {
      DeviceCall as_nccl = *call;
      if (divides(*call)) as_nccl.reduction = FSCCL_SUM;
      FSCCL_TRY(enqueue(by, as_nccl, features_.all_to_all.usable, scratch_));
    }
    return success();
  };
}

Status DeviceCollectives::move(const Calls& calls) {
  return ucx_ ? ucx_->run(calls) : nccl_->group(issue(*nccl_, calls));
}

bool DeviceCollectives::can_gather_in_place(const std::byte* memory, uint64_t bytes) const {
  const nccl::Communicator* const by = copier_ ? copier_.get() : nccl_.get();
  return !by || !by->touches_window(memory, bytes) || by->in_window(memory, bytes);
}

Status DeviceCollectives::gather_in_place(const DeviceCall& call) {
  if (!copier_) return run(std::span(&call, 1));
  const cuda::Current current(*device_);
  const std::set<cuda::CUstream> streams{call.stream};
  const auto issued = issue(*copier_, {&call});
  Chain chain;
  return chain.run(std::array{&comm_.engine()}, [&] {
    return run_followed(streams, [&]() -> Status {
      FSCCL_TRY(copier_->group(issued));
      chain.begin();
      return success();
    });
  });
}

}  // namespace fsccl
