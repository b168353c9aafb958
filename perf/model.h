// A model as a list of units with the shapes of their parameters, read from JSON:
//   {"name": "tiny", "units": [{"name": "root", "params": [["embedding", [4096, 1024]], ...]},
//                              {"name": "layers.0", ...}, ...]}
// Units come in the order of the forward pass. An entry of the list may also stand for several
// units, with the numbers first, first + 1, ... in the place of {} in their names:
//   {"repeat": 32, "first": 0, "units": [{"name": "layers.{}.attention", "params": [...]},
//                                        {"name": "layers.{}.experts", ...}]}
// A unit belongs to a layer when a component of its name ends in a digit: "layers.3" and
// "layers.3.experts" to layer "layers.3". The first unit stays gathered for the whole step, as
// FSDP's root does, or is taken apart (split_root).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsccl::perf {

struct ModelParam {
  std::string name;
  std::vector<int64_t> dims;  // at most FSCCL_MAX_DIMS, none negative
  uint64_t elements() const;
};
struct ModelUnit {
  std::string name;
  std::vector<ModelParam> params;
  uint64_t elements() const;
  std::string_view layer() const;  // the layer in its name; empty when it belongs to none
  bool is_layer() const { return !layer().empty(); }
};
struct Model {
  std::string name;
  std::vector<ModelUnit> units;
  size_t stays = 0;  // the unit that is not given back between the forward and the backward pass
  uint64_t elements() const;
  size_t layers() const;  // different ones
};

// Nothing on failure, and then *error says what is wrong and where; `source` names the text in it.
std::optional<Model> parse_model(std::string_view text, const std::string& source,
                                 std::string* error);

// `name` is a file (it has a slash or ends in .json) or the name of a model in one of the
// `folders`, in upper or lower case.
std::optional<Model> load_model(const std::string& name, const std::vector<std::string>& folders,
                                std::string* error);

// Where models are: perf/models in a build tree, share/fsccl/models of an installed one.
std::vector<std::string> model_folders();

// Keeps the units of the first `layers` layers and those of none; false with *error when the model
// has fewer.
bool keep_layers(Model* model, size_t layers, std::string* error);

// Makes two units of the root, as TorchTitan shards models: its first parameter (the embedding)
// begins the step, the others (norm and head) end it, and stay from the forward to the backward
// pass.
void split_root(Model* model);

}  // namespace fsccl::perf
