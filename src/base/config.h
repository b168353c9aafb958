// The configuration: one immutable Config, which has a typed field for each variable of config.def.
// A value that fsccl_config_set() sets goes before one of the environment, which goes before one of
// the file that FSCCL_CONFIG_FILE names, which goes before the default. Each object takes a
// snapshot when it is made, so nothing on the step path looks a variable up.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fsccl/insight.h"

namespace fsccl {

#define FSCCL_INTEGER(...)
#define FSCCL_BYTES(...)
#define FSCCL_BOOL(...)
#define FSCCL_STRING(...)
#define FSCCL_PATH(...)
#define FSCCL_ENUM(NAME, field, Type, text, doc, ...) enum class Type : int { __VA_ARGS__ };
#define FSCCL_LIST(NAME, field, Type, text, doc, ...) enum class Type : int { __VA_ARGS__ };
#include "base/config.def"

inline constexpr int64_t kConfigAuto = -1;  // the number that stands for "auto"
// The largest limit of a pool. The sizes that are computed from such a limit fit into 64 bits.
inline constexpr int64_t kMostPoolBytes = int64_t{1} << 46;

struct Config {
#define FSCCL_INTEGER(NAME, field, ...) int64_t field = 0;
#define FSCCL_BYTES(NAME, field, ...) int64_t field = 0;
#define FSCCL_BOOL(NAME, field, ...) bool field = false;
#define FSCCL_STRING(NAME, field, ...) std::string field;
#define FSCCL_PATH(NAME, field, ...) std::string field;
#define FSCCL_ENUM(NAME, field, Type, ...) Type field = {};
#define FSCCL_LIST(NAME, field, Type, ...) std::vector<Type> field;
#include "base/config.def"
};

using ConfigRef = std::shared_ptr<const Config>;

// Returns the present snapshot, never null. The first call reads the file and the environment. A
// value there that is not acceptable is left out: the snapshot has the value that the setting has
// without it, and config_status() returns the error. Any thread may call it.
ConfigRef config();

// Returns what is wrong with the file or the environment (FSCCL_ERR_CONFIG). Every function that
// creates an object calls this first and fails with the error. Any thread may call it.
Status config_status();

// The implementation of the three functions of the public header. A call of config_set() that fails
// changes nothing.
Status config_set(std::string_view name, std::string_view value);
Result<std::string> config_get(std::string_view name);
Status config_dump(const std::function<void(const fsccl_config_entry_t&)>& visit);

}  // namespace fsccl
