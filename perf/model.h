// A model as a list of units with the shapes of their parameters, read from JSON:
//   {"name": "tiny", "units": [{"name": "root", "params": [["embedding", [4096, 1024]], ...]},
//                              {"name": "layers.0", ...}, ...]}
// Units come in the order of the forward pass. An entry of the list may also stand for several
// units, with the numbers first, first + 1, ... in the place of {} in their names:
//   {"repeat": 32, "first": 0, "units": [{"name": "layers.{}.attention", "params": [...]},
//                                        {"name": "layers.{}.experts", ...}]}
// Figures for forecasts that fsccl_torch.export_model() writes are allowed, and not used here.
// A unit belongs to a layer if a component of its name ends in a digit: "layers.3" and
// "layers.3.experts" belong to layer "layers.3". The first unit stays gathered for the whole step,
// as FSDP's root does, or is split in two (split_root).
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
  std::string_view layer() const;  // the layer in its name, or empty
  bool is_layer() const { return !layer().empty(); }
};
struct Model {
  std::string name;
  std::vector<ModelUnit> units;
  size_t stays = 0;  // the unit that is not given back between the forward and the backward pass
  uint64_t elements() const;
  size_t layers() const;  // number of different layers
};

// Returns nothing on failure, and then *error says what is wrong and where; it names the text
// `source`.
std::optional<Model> parse_model(std::string_view text, const std::string& source,
                                 std::string* error);

// Reads the model `name`. A name with a slash, or one that ends in .json, is the path of a file.
// Any other name is that of a file in one of the `folders`, in upper or lower case.
std::optional<Model> load_model(const std::string& name, const std::vector<std::string>& folders,
                                std::string* error);

// Returns the folders that may hold models: perf/models of a build tree, and share/fsccl/models of
// an installation.
std::vector<std::string> model_folders();

// Keeps the units of the first `layers` layers and those that belong to no layer. Returns false and
// sets *error if the model has fewer layers, or if no unit is left.
bool keep_layers(Model* model, size_t layers, std::string* error);

// Makes two units of the root, as TorchTitan shards models. One has the first parameter (the
// embedding) and begins the forward pass. The other has the rest (norm and head), ends the forward
// pass, and stays for the backward pass.
void split_root(Model* model);

}  // namespace fsccl::perf
