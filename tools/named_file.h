// Finds the files of models and machines that come with the programs.
#pragma once
#include <optional>
#include <string>
#include <vector>

// Returns the path of a file: `name` itself if it has a slash or ends in .json, or NAME.json in one
// of the folders, in upper or lower case. If there is none, prints the known names, or the folders
// if they have no file.
std::optional<std::string> find_named(const std::string& name, const char* kind,
                                      const std::vector<std::string>& folders);
