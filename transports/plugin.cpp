// A plug-in is code that the program has chosen to run, so its functions are trusted. Its table of
// functions, however, may be of another version or incomplete, so the table is checked once, when
// the plug-in is loaded. After that the engine calls no function that is missing.
#include "transports/plugin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/immortal.h"
#include "base/loaded_library.h"
#include "transports/plugin_transport.h"
#include "transports/transports.h"

namespace fsccl {
namespace {

constexpr size_t kMostName = 15;
// The required members lie before `path`; `path` and later members may be NULL.
constexpr size_t kLeastBytes = offsetof(fsccl_transport_ops_t, path);

Status check_name(const char* name) {
  const size_t length = name ? strnlen(name, kMostName + 1) : 0;
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (length == 0 || length > kMostName || !std::all_of(name, name + length, fits))
    return fail(FSCCL_ERR_NOT_AVAILABLE, "its name is not 1 to {} of a-z, 0-9, _ and -", kMostName);
  const auto known = known_transports();
  if (std::any_of(known.begin(), known.end(),
                  [&](const KnownTransport& one) { return one.name == name; }))
    return fail(FSCCL_ERR_NOT_AVAILABLE, "its name is {}, which is that of a built-in transport",
                name);
  return success();
}

Status check_functions(const fsccl_transport_ops_t& ops) {
  const std::pair<const char*, bool> needed[] = {{"available", ops.available},
                                                 {"join", ops.join},
                                                 {"connect", ops.connect},
                                                 {"leave", ops.leave},
                                                 {"open", ops.open},
                                                 {"close", ops.close},
                                                 {"signal", ops.signal},
                                                 {"poll", ops.poll},
                                                 {"word", ops.word},
                                                 {"can_read", ops.can_read},
                                                 {"read", ops.read},
                                                 {"slots", ops.slots},
                                                 {"reserve", ops.reserve},
                                                 {"put", ops.put},
                                                 {"rest", ops.rest},
                                                 {"fail", ops.fail},
                                                 {"failure", ops.failure},
                                                 {"left", ops.left},
                                                 {"pair", ops.pair}};
  for (const auto& [name, there] : needed)
    if (!there) return fail(FSCCL_ERR_NOT_AVAILABLE, "its table has no {}()", name);
  if (!ops.expect != !ops.placed)
    return fail(FSCCL_ERR_NOT_AVAILABLE, "its table has one of expect() and placed(), not both");
  if (!ops.path != !ops.take_path)
    return fail(FSCCL_ERR_NOT_AVAILABLE, "its table has one of path() and take_path(), not both");
  return success();
}

Result<fsccl_transport_ops_t> load(const std::string& path) {
  LoadedLibrary library(path.c_str());
  if (!library.loaded())
    return fail(FSCCL_ERR_NOT_AVAILABLE, "it cannot be loaded: {}", library.why_not());
  const fsccl_transport_ops_t* (*plugin)(uint32_t abi);
  library.find(plugin, "fsccl_transport_plugin");
  if (!plugin)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "it exports no fsccl_transport_plugin(): it is no transport for FSCCL");
  return checked_table(plugin(FSCCL_TRANSPORT_ABI));
}

}  // namespace

Result<fsccl_transport_ops_t> checked_table(const fsccl_transport_ops_t* given) {
  if (!given)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "it has no table of version {}: build it for this release's fsccl/transport.h",
                FSCCL_TRANSPORT_ABI);
  // The size must be a multiple of the alignment: otherwise the table would end in half a pointer.
  if (given->size < kLeastBytes || given->size % alignof(fsccl_transport_ops_t) != 0 ||
      given->abi != FSCCL_TRANSPORT_ABI)
    return fail(
        FSCCL_ERR_NOT_AVAILABLE,
        "its table has {} bytes and version {}; whole functions in at least {}, and {} are needed",
        given->size, given->size < offsetof(fsccl_transport_ops_t, name) ? 0 : given->abi,
        kLeastBytes, FSCCL_TRANSPORT_ABI);
  fsccl_transport_ops_t ops{};
  std::memcpy(&ops, given, std::min(given->size, sizeof ops));
  ops.size = sizeof ops;
  FSCCL_TRY(check_name(ops.name));
  FSCCL_TRY(check_functions(ops));
  return ops;
}

// Pointers to transports are handed out, so a transport stays at its address.
Result<const Transport*> plugin_transport(const std::string& path) {
  if (path.empty())
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "FSCCL_TRANSPORT_PLUGIN names none: set it to a plug-in's path, on all ranks");
  static std::mutex mutex;
  static Immortal<std::map<std::string, PluginTransport>> loaded;
  const std::lock_guard lock(mutex);
  auto& transports = loaded.get();
  auto found = transports.find(path);
  if (found == transports.end()) {
    auto table = load(path);
    if (!table.ok())
      return fail(FSCCL_ERR_NOT_AVAILABLE, "the plug-in '{}' is of no use: {}", path,
                  table.status().text());
    found = transports.try_emplace(path, table.value()).first;
  }
  return &found->second;
}

}  // namespace fsccl
