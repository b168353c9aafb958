#include "bootstrap/pmix_library.h"

#include <cstdlib>
#include <mutex>
#include <optional>

#include "base/loaded_library.h"

namespace fsccl {

namespace {

// These values and types are those of pmix_common.h in versions 2 to 5. They cannot change while
// the library is named libpmix.so.2.
constexpr uint32_t kAllRanks = UINT32_MAX - 1;
constexpr uint16_t kString = 3, kUint16 = 13, kUint32 = 14;
struct Process {
  char job[256];
  uint32_t rank;
};
struct Value {
  uint16_t type;
  union {
    char* text;
    uint16_t number16;
    uint32_t number32;
    void* room[2];
  } data;
};

struct Library {
  int (*init)(Process* self, void* info, size_t infos);
  int (*get)(const Process* of, const char* key, const void* info, size_t infos, Value** value);
  int (*finalize)(const void* info, size_t infos);
  const char* (*error_string)(int status);
};

Result<Library> load() {
  LoadedLibrary file("libpmix.so.2");
  if (!file.loaded()) return fail(FSCCL_ERR_NOT_AVAILABLE, "{}", file.why_not());
  Library library{};
  file.find(library.init, "PMIx_Init");
  file.find(library.get, "PMIx_Get");
  file.find(library.finalize, "PMIx_Finalize");
  file.find(library.error_string, "PMIx_Error_string");
  if (file.missing())
    return fail(FSCCL_ERR_NOT_AVAILABLE, "libpmix.so.2 lacks functions of PMIx 2");
  return library;
}

// Gets a value and calls `read` with it. A value of another type is an error, as a missing one is.
template <class Read>
Status get(const Library& library, const Process& of, const char* key, uint16_t type, Read&& read) {
  Value* value = nullptr;
  const int status = library.get(&of, key, nullptr, 0, &value);
  if (status != 0 || !value)
    return fail(FSCCL_ERR_NOT_AVAILABLE, "{}: {}", key, library.error_string(status));
  const bool right = value->type == type && (type != kString || value->data.text);
  if (right) read(*value);
  if (value->type == kString) std::free(value->data.text);
  std::free(value);
  return right ? success() : fail(FSCCL_ERR_NOT_AVAILABLE, "{} is of another type", key);
}

Status get_all(const Library& library, const Process& self, PmixJob* job) {
  Process all = self, first = self;
  all.rank = kAllRanks;
  first.rank = 0;
  FSCCL_TRY(get(library, all, "pmix.job.size", kUint32,
                [&](const Value& value) { job->ranks = value.data.number32; }));
  FSCCL_TRY(get(library, all, "pmix.local.size", kUint32,
                [&](const Value& value) { job->local_ranks = value.data.number32; }));
  FSCCL_TRY(get(library, self, "pmix.lrank", kUint16,
                [&](const Value& value) { job->local_rank = value.data.number16; }));
  return get(library, first, "pmix.hname", kString,
             [&](const Value& value) { job->first_host = value.data.text; });
}

Result<PmixJob> ask() {
  FSCCL_ASSIGN(const Library library, load());
  Process self{};
  const StandardNumbersTaken taken;  // until PMIx has closed its own descriptors again
  if (const int status = library.init(&self, nullptr, 0); status != 0)
    return fail(FSCCL_ERR_NOT_AVAILABLE, "PMIx_Init: {}", library.error_string(status));
  PmixJob job;
  Status status = get_all(library, self, &job);
  library.finalize(nullptr, 0);
  if (!status.ok()) return status;
  return job;
}

}  // namespace

Result<PmixJob> ask_pmix() {
  static std::mutex mutex;
  static std::optional<PmixJob> answer;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!answer) {
    FSCCL_ASSIGN(answer, ask());
  }
  return *answer;
}

}  // namespace fsccl
