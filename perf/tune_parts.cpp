#include "tune_parts.h"

#include <fmt/format.h>

namespace fsccl::perf {

std::string setting(const char* name) {
  std::string value(16384, '\0');
  must(fsccl_config_get(name, value.data(), value.size()), name);
  return value.c_str();
}

Json explain(fsccl_comm_t comm, const std::string& operation, uint64_t bytes) {
  std::vector<char> text(1 << 16);
  must(fsccl_explain(comm, operation.c_str(), bytes, text.data(), text.size()), "fsccl_explain");
  return Json::parse(text.data());
}

Forced::Forced(const Session& session, std::string plan, const std::string& operation)
    : plan_(std::move(plan)) {
  const std::string before = setting("FSCCL_PLAN");
  if (!plan_.empty())
    must(fsccl_config_set("FSCCL_PLAN", fmt::format("{}={}", operation, plan_).c_str()),
         "FSCCL_PLAN");
  const fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  must(fsccl_comm_split(session.comm(), 0, session.rank(), &config, &comm_), "fsccl_comm_split");
  must(fsccl_config_set("FSCCL_PLAN", before.c_str()), "FSCCL_PLAN");
}

Forced::~Forced() {
  if (comm_) must(fsccl_comm_destroy(comm_), "fsccl_comm_destroy");
}

}  // namespace fsccl::perf
