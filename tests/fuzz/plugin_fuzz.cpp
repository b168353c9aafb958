// Fuzzes the tables of functions of plug-in transports (fsccl/transport.h), with any size, version
// and name, and with missing functions. A table that is accepted has every function that the engine
// calls.
#include "transports/plugin.h"

#include <cstddef>
#include <cstring>
#include <memory>

#include "fuzz.h"

using namespace fsccl;

namespace {

constexpr size_t kHead = offsetof(fsccl_transport_ops_t, available);  // size, version and name
constexpr size_t kPointer = sizeof(void*);
constexpr size_t kNameBytes = 16;  // the longest name, with its end

void called() { abort(); }  // the library only checks the table, and must call no function

bool is(const fsccl_transport_ops_t& ops, size_t offset) {
  void* function;
  std::memcpy(&function, reinterpret_cast<const char*>(&ops) + offset, kPointer);
  return function != nullptr;
}

void expect_whole(const fsccl_transport_ops_t& ops, size_t given) {
  FUZZ_REQUIRE(ops.size == sizeof ops && ops.abi == FSCCL_TRANSPORT_ABI);
  FUZZ_REQUIRE(strnlen(ops.name, kNameBytes) > 0 && strnlen(ops.name, kNameBytes) < kNameBytes);
  FUZZ_REQUIRE(std::strspn(ops.name, "abcdefghijklmnopqrstuvwxyz0123456789_-") ==
               std::strlen(ops.name));
  FUZZ_REQUIRE(std::strcmp(ops.name, "tcp") != 0 && std::strcmp(ops.name, "shm") != 0);
  for (size_t at = kHead; at < offsetof(fsccl_transport_ops_t, keeps_pages); at += kPointer)
    FUZZ_REQUIRE(is(ops, at) || at == offsetof(fsccl_transport_ops_t, expect) ||
                 at == offsetof(fsccl_transport_ops_t, placed));
  FUZZ_REQUIRE(!ops.expect == !ops.placed && !ops.path == !ops.take_path);
  for (size_t at = given; at < sizeof ops; at += kPointer) FUZZ_REQUIRE(!is(ops, at));
}

}  // namespace

// In an input two bytes are the table's size, one is its version (77 is the right one), 16 are the
// name, and one for each function says whether the table has it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 3 + kNameBytes) return 0;
  const size_t size = data[0] | size_t{data[1]} << 8;
  // The memory has exactly the table's size, so that a sanitizer sees a read beyond it.
  const size_t room = size < sizeof size ? sizeof size : size;
  const std::unique_ptr<void, decltype(&free)> memory(malloc(room), free);
  auto* const table = static_cast<unsigned char*>(memory.get());
  const auto write = [&](size_t at, const void* what, size_t count) {
    if (at < room) std::memcpy(table + at, what, count < room - at ? count : room - at);
  };
  std::memset(table, 0, room);
  const uint32_t abi = data[2] == 77 ? FSCCL_TRANSPORT_ABI : data[2];
  const auto name = std::make_unique<char[]>(kNameBytes);
  std::memcpy(name.get(), data + 3, kNameBytes);
  const char* const given_name = name[0] == '!' ? nullptr : name.get();
  for (size_t at = kHead, i = 3 + kNameBytes; at < size; at += kPointer, i++) {
    void (*const function)() = i < bytes && data[i] % 8 == 0 ? nullptr : called;
    write(at, &function, sizeof function);
  }
  write(0, &size, sizeof size);
  write(offsetof(fsccl_transport_ops_t, abi), &abi, sizeof abi);
  write(offsetof(fsccl_transport_ops_t, name), &given_name, sizeof given_name);

  const auto taken = checked_table(reinterpret_cast<const fsccl_transport_ops_t*>(table));
  if (taken.ok())
    expect_whole(taken.value(), size);
  else
    FUZZ_REQUIRE(taken.status().code() == FSCCL_ERR_NOT_AVAILABLE &&
                 !taken.status().text().empty());
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  const auto add = [&](size_t size, uint8_t abi, std::string name,
                       const std::string& functions = {}) {
    name.resize(kNameBytes, '\0');
    seeds.push_back(
        std::string{static_cast<char>(size), static_cast<char>(size >> 8), static_cast<char>(abi)} +
        name + functions);
  };
  constexpr size_t kWhole = sizeof(fsccl_transport_ops_t);
  add(kWhole, 77, "a-name_2");
  for (const size_t size : {kWhole + 64, kWhole - kPointer, kWhole - 4,
                            offsetof(fsccl_transport_ops_t, path), kHead, size_t{0}})
    add(size, 77, "of-this-size");
  add(kWhole, 2, "newer");
  for (const char* name :
       {"", "!", "tcp", "Upper", "a name", "fifteen-letters", "sixteen--letters"})
    add(kWhole, 77, name);
  for (size_t i = 0; i < (kWhole - kHead) / kPointer; i++)
    add(kWhole, 77, "lacks-one", std::string(i, '\1') + '\0');
  return seeds;
}
