// Stands in for bootstrap/member_info.cpp: tells a rank of its process and host in a simulated
// world.
#include "base/hash.h"
#include "bootstrap/member_info.h"
#include "transports/sim/process.h"
#include "wire/authentication.h"

namespace fsccl {
namespace {

constexpr uint64_t kTicks = 1'000'000;

}  // namespace

uint64_t host_number(const std::string&) {
  return mix_hash(1, static_cast<uint64_t>(sim::Process::current().host));
}
uint64_t start_time_of(int32_t pid) { return kTicks + static_cast<uint64_t>(pid); }

char state_of(int32_t pid, uint64_t start_time, int32_t) {
  const sim::Process* const process = sim::Process::of_pid(pid);
  return process && start_time == start_time_of(pid) ? process->state() : 'X';
}

Fd end_of_thread(int32_t, uint64_t, int32_t) { return Fd(); }

MemberRecord describe_process(const std::string& host_id) {
  MemberRecord record;
  record.host = host_number(host_id);
  record.pid = sim::Process::current().pid;
  record.uid = 1;
  record.start_time = start_time_of(record.pid);
  random_bytes(record.listener.data(), record.listener.size());
  return record;
}

}  // namespace fsccl
