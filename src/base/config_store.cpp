#include "base/config_store.h"

#include <algorithm>

namespace fsccl {
namespace {

constexpr std::string_view kFileVariable = "FSCCL_CONFIG_FILE";

// Returns the index of a known name, or -1.
int find_variable(std::string_view name) {
  const auto& specs = config_specs();
  const auto found = std::find_if(specs.begin(), specs.end(),
                                  [&](const ConfigSpec& spec) { return name == spec.name; });
  return found == specs.end() ? -1 : static_cast<int>(found - specs.begin());
}

std::string unknown_text(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ConfigSpec& spec : config_specs()) names.push_back(spec.name);
  const std::string_view nearest = nearest_name(name, names);
  if (nearest.empty())
    return fmt::format("unknown variable {}; `fsccl-info config` lists the known ones",
                       quote(name));
  return fmt::format("unknown variable {}; did you mean {}?", quote(name), nearest);
}

Status unknown(std::string_view name) { return fail(FSCCL_ERR_CONFIG, "{}", unknown_text(name)); }

// Fills the typed fields. `values` has the order of config.def.
ConfigRef make_config(const std::vector<ConfigValue>& values) {
  auto config = std::make_shared<Config>();
  auto value = values.begin();
#define FSCCL_INTEGER(NAME, field, ...) config->field = (value++)->number;
#define FSCCL_BYTES(NAME, field, ...) config->field = (value++)->number;
#define FSCCL_BOOL(NAME, field, ...) config->field = (value++)->number != 0;
#define FSCCL_STRING(NAME, field, ...) config->field = (value++)->text;
#define FSCCL_PATH(NAME, field, ...) config->field = (value++)->text;
#define FSCCL_ENUM(NAME, field, Type, ...) config->field = static_cast<Type>((value++)->number);
#define FSCCL_LIST(NAME, field, Type, ...) \
  for (const int64_t word : (value++)->list) config->field.push_back(static_cast<Type>(word));
#include "base/config.def"
  return config;
}

}  // namespace

const std::vector<ConfigSpec>& config_specs() {
  static const std::vector<ConfigSpec> specs = {
#define FSCCL_INTEGER(NAME, field, text, minimum, maximum, doc) \
  {"FSCCL_" #NAME, ConfigType::kInteger, text, minimum, maximum, "", doc},
#define FSCCL_BYTES(NAME, field, text, minimum, maximum, doc) \
  {"FSCCL_" #NAME, ConfigType::kBytes, text, minimum, maximum, "", doc},
#define FSCCL_BOOL(NAME, field, text, doc) {"FSCCL_" #NAME, ConfigType::kBool, text, 0, 0, "", doc},
#define FSCCL_STRING(NAME, field, text, maximum, doc) \
  {"FSCCL_" #NAME, ConfigType::kString, text, 0, maximum, "", doc},
#define FSCCL_PATH(NAME, field, text, doc) {"FSCCL_" #NAME, ConfigType::kPath, text, 0, 0, "", doc},
#define FSCCL_ENUM(NAME, field, Type, text, doc, ...) \
  {"FSCCL_" #NAME, ConfigType::kEnum, text, 0, 0, #__VA_ARGS__, doc},
#define FSCCL_LIST(NAME, field, Type, text, doc, ...) \
  {"FSCCL_" #NAME, ConfigType::kList, text, 0, 0, #__VA_ARGS__, doc},
#include "base/config.def"
  };
  return specs;
}

ConfigStore::ConfigStore(std::vector<ConfigSetting> environment)
    : environment_(std::move(environment)) {
  resolve();
}

void ConfigStore::complain(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

// Reads the file that the API names, or else the one that the environment names.
Status ConfigStore::read_file() {
  std::string path;
  for (const auto* settings : {&environment_, &api_}) {
    for (const ConfigSetting& setting : *settings) {
      if (setting.name == kFileVariable) path = setting.value;
    }
  }
  if (path == file_path_) return success();
  file_.clear();
  file_path_.clear();
  if (path.empty()) return success();
  FSCCL_ASSIGN(file_, read_config_file(path));
  file_path_ = path;
  return success();
}

void ConfigStore::apply(const std::vector<ConfigSetting>& settings, const char* source,
                        std::vector<ConfigValue>* values) {
  for (const ConfigSetting& setting : settings) {
    const std::string place =
        setting.line > 0 ? fmt::format("{}, line {}", quote(file_path_), setting.line) : source;
    const int index = find_variable(setting.name);
    if (index < 0) {
      warnings_.push_back(fmt::format("{} (from {})", unknown_text(setting.name), place));
      continue;
    }
    if (setting.line > 0 && setting.name == kFileVariable) {
      complain(fail(FSCCL_ERR_CONFIG, "{} sets {}: a file cannot name another; remove the line",
                    place, kFileVariable));
      continue;
    }
    auto value = parse_config_value(config_specs()[static_cast<size_t>(index)], setting.value);
    if (!value.ok()) {
      complain(fail(FSCCL_ERR_CONFIG, "{} (from {})", value.status().text(), place));
      continue;
    }
    (*values)[static_cast<size_t>(index)] = value.take();
    entries_[static_cast<size_t>(index)] = {setting.value, source};
  }
}

void ConfigStore::resolve() {
  entries_.clear();
  warnings_.clear();
  status_ = read_file();
  std::vector<ConfigValue> values;
  for (const ConfigSpec& spec : config_specs()) {
    auto value = parse_config_value(spec, spec.default_text);
    if (!value.ok()) complain(fail(FSCCL_ERR_INTERNAL, "default of {}", value.status().text()));
    values.push_back(value.ok() ? value.take() : ConfigValue());
    entries_.push_back({spec.default_text, "default"});
  }
  apply(file_, "file", &values);
  apply(environment_, "environment", &values);
  apply(api_, "api", &values);
  snapshot_ = make_config(values);
}

Status ConfigStore::set(std::string_view name, std::string_view value,
                        const std::function<Status(const Config&)>& take) {
  const int index = find_variable(name);
  if (index < 0) return unknown(name);
  const auto parsed = parse_config_value(config_specs()[static_cast<size_t>(index)], value);
  if (!parsed.ok()) return parsed.status().clone();

  std::vector<ConfigSetting> before = api_;
  std::erase_if(api_, [&](const ConfigSetting& setting) { return setting.name == name; });
  api_.push_back({std::string(name), std::string(value), 0});
  resolve();
  Status status = status_.clone();
  if (status.ok() && take) status = take(*snapshot());
  if (status.ok()) return status;
  api_ = std::move(before);
  resolve();
  return status;
}

Result<std::string> ConfigStore::get(std::string_view name) const {
  const int index = find_variable(name);
  if (index < 0) return unknown(name);
  return entries_[static_cast<size_t>(index)].value;
}

}  // namespace fsccl
