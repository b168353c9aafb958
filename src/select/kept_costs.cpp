#include "select/kept_costs.h"

#include <sys/utsname.h>

#include <algorithm>

#include "base/hash.h"
#include "base/json_writer.h"
#include "base/kept_file.h"
#include "base/log.h"
#include "base/processor.h"
#include "base/version.h"

namespace fsccl {
namespace {

bool alike(const Tuning::Measured& a, const Tuning::Measured& b) {
  return a.machine == b.machine && a.transport == b.transport && a.link == b.link;
}

void take_less(double& least, double ns) { least = std::min(least, ns); }
void take_less(Cost& least, const Cost& cost) {
  for (size_t i = 0; i < cost.ns.size(); i++) take_less(least.ns[i], cost.ns[i]);
}

Costs least_of(const Costs& a, const Costs& b) {
  Costs least = a;
  if (b.slot_cached.ns.back() < a.slot_cached.ns.back()) least.side_by_side = b.side_by_side;
  take_less(least.exchange, b.exchange);
  take_less(least.slot_cached, b.slot_cached);
  take_less(least.slot_streaming, b.slot_streaming);
  take_less(least.copy_per_byte, b.copy_per_byte);
  if (!a.can_read) {
    least.read = b.read;
    least.read_past_caches = b.read_past_caches;
  } else if (b.can_read) {
    take_less(least.read, b.read);
    take_less(least.read_past_caches, b.read_past_caches);
  }
  least.can_read = a.can_read || b.can_read;
  return least;
}

}  // namespace

std::string KeptCosts::file_of(const std::string& machine) {
  const std::string info = processor_info();
  utsname system{};
  (void)::uname(&system);
  return kept_file_path(fmt::format(
      "costs-{:016x}.json",
      hash_of(fmt::format("{}\n{}\n{}\n{}\n{}", machine, processor_model(info),
                          processor_field(info, "microcode"), system.release, library_version()))));
}

KeptCosts::KeptCosts(std::string path, std::string machine, std::string_view transport,
                     topo::LinkClass link)
    : path_(std::move(path)) {
  key_.machine = std::move(machine);
  key_.transport = transport;
  key_.link = link;
  if (path_.empty()) return;
  Result<std::string> text = read_kept_file(path_);
  Result<Tuning> kept = text.ok() ? parse_tuning(text.value(), path_) : text.take_status();
  if (!kept.ok()) {
    FSCCL_LOG(kDebug, "{}", kept.status().text());
    return;
  }
  entries_ = std::move(kept.value().costs);
  for (const Tuning::Measured& entry : entries_)
    if (alike(entry, key_)) least_ = own_++ ? least_of(least_, entry.costs) : entry.costs;
}

void KeptCosts::add(const Costs& measured) {
  if (path_.empty()) return;
  if (own_ == kStarts) {  // the oldest entry is replaced
    entries_.erase(std::find_if(entries_.begin(), entries_.end(),
                                [&](const Tuning::Measured& one) { return alike(one, key_); }));
  }
  entries_.push_back(key_);
  entries_.back().costs = measured;
  const auto write = [this](JsonWriter& out) {
    const auto one = [&out](const Tuning::Measured& entry) {
      out.map({{"link", topo::traits(entry.link).name},
               {"machine", entry.machine},
               {"measured", [&] { write_costs(out, entry.costs); }},
               {"transport", entry.transport}});
    };
    out.map({{"costs", [&] { out.list(entries_, one); }}, {"fsccl_tuning", 1}});
  };
  const std::string text = write_json(write, JsonWriter::Form::lines) + '\n';
  if (const Status kept = keep_file(path_, text); !kept.ok())
    FSCCL_LOG(kInfo, "what was measured between the ranks is not kept: {}", kept.text());
}

}  // namespace fsccl
