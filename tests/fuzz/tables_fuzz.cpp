// Fuzzes the tables of functions by which a program is a source of memory (fsccl/allocator.h):
// wrong sizes and versions, missing functions, and functions with forbidden answers. The library
// refuses the table or the answers, and gives back all memory that it has taken.
#include <fsccl/allocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <map>

#include "fuzz.h"

namespace {

constexpr size_t kMostBytes = 8u << 20;

// A source whose answers the input chooses.
class Source {
 public:
  Source(const uint8_t* data, size_t bytes) : data_(data), left_(bytes) {}
  ~Source() {
    for (const auto& [pointer, block] : blocks_) end(pointer, block);
  }
  uint8_t byte() { return left_ ? (left_--, *data_++) : uint8_t{0}; }

  static fsccl_status_t allocate(void* context, size_t bytes, size_t alignment, void*,
                                 void** pointer) {
    return static_cast<Source*>(context)->give(bytes, alignment, pointer);
  }
  static fsccl_status_t deallocate(void* context, void* pointer, size_t bytes, void*) {
    return static_cast<Source*>(context)->take(pointer, bytes);
  }
  static fsccl_status_t share(void* context, void* pointer, int* fd, uint64_t* offset) {
    return static_cast<Source*>(context)->tell(pointer, fd, offset);
  }

 private:
  struct Block {
    size_t bytes = 0;
    int fd = -1;
  };

  fsccl_status_t give(size_t bytes, size_t alignment, void** pointer) {
    FUZZ_REQUIRE(bytes > 0 && alignment > 0 && (alignment & (alignment - 1)) == 0);
    const uint8_t answer = byte();
    if (answer == 1) return FSCCL_OK;  // success without a block
    if (answer == 2) return static_cast<fsccl_status_t>(int8_t(byte()));
    // The block reaches beyond the end of all memory.
    if (answer == 3) return *pointer = reinterpret_cast<void*>(UINTPTR_MAX - 63), FSCCL_OK;
    if (bytes > kMostBytes || alignment > 4096) return FSCCL_ERR_OUT_OF_MEMORY;
    Block block{(bytes + 4095) / 4096 * 4096, memfd_create("fuzzed", MFD_CLOEXEC)};
    FUZZ_REQUIRE(block.fd >= 0 && ftruncate(block.fd, static_cast<off_t>(block.bytes)) == 0);
    void* const made = mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, block.fd, 0);
    FUZZ_REQUIRE(made != MAP_FAILED);
    // The block is not aligned, so the library gives it back at once, as it was given.
    *pointer = static_cast<char*>(made) + (answer == 4 ? 8 : 0);
    blocks_[*pointer] = block;
    return FSCCL_OK;
  }

  fsccl_status_t take(void* pointer, size_t) {
    const auto found = blocks_.find(pointer);
    if (found == blocks_.end()) return FSCCL_ERR_INVALID_ARGUMENT;
    end(pointer, found->second);
    blocks_.erase(found);
    return byte() == 5 ? static_cast<fsccl_status_t>(-77) : FSCCL_OK;
  }

  fsccl_status_t tell(void* pointer, int* fd, uint64_t* offset) {
    const auto found = blocks_.find(pointer);
    FUZZ_REQUIRE(found != blocks_.end());
    *offset = 0;
    switch (byte() % 8) {
      case 1:
        return FSCCL_OK;  // no descriptor
      case 2:
        *offset = 17;  // not at the beginning of a page
        break;
      case 3:
        *offset = 1u << 30;  // beyond the file
        break;
      case 4:
        *offset = ~uint64_t{0} - 4095;
        break;
      case 5:  // a descriptor of another file, which is too small
        *fd = memfd_create("other", MFD_CLOEXEC);
        return ftruncate(*fd, 4096) == 0 ? FSCCL_OK : FSCCL_ERR_SYSTEM;
      case 6:
        return static_cast<fsccl_status_t>(int8_t(byte()));
      default:
        break;
    }
    *fd = dup(found->second.fd);
    return FSCCL_OK;
  }

  static void end(void* pointer, const Block& block) {
    munmap(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(pointer) & ~uintptr_t{4095}),
           block.bytes);
    close(block.fd);
  }

  const uint8_t* data_;
  size_t left_;
  std::map<void*, Block> blocks_;
};

void expect_sense(fsccl_status_t status) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  if (status < 0)
    FUZZ_REQUIRE(fsccl_last_error(&error) == FSCCL_OK && error.code == status && error.text[0] &&
                 status > FSCCL_ERR_INTERNAL);
}

fsccl_allocator_t read_table(Source& source) {
  fsccl_allocator_t table = FSCCL_ALLOCATOR_INIT;
  table.context = &source;
  table.allocate = Source::allocate;
  table.deallocate = Source::deallocate;
  const uint8_t odd = source.byte();
  if (odd & 1) table.share = Source::share;
  if (odd & 2) table.name = "fuzzed";
  switch (odd >> 4) {
    case 1:
      table.size = source.byte();
      break;
    case 2:
      table.size = ~size_t{0} >> source.byte() % 64;
      if (table.size > sizeof table) table.size = table.size < 8192 ? sizeof table : table.size;
      break;
    case 3:
      table.abi = source.byte();
      break;
    case 4:
      table.allocate = nullptr;
      break;
    case 5:
      table.deallocate = nullptr;
      break;
    case 6:
      table.memory = static_cast<fsccl_memory_t>(source.byte());
      break;
    default:
      break;
  }
  return table;
}

fsccl_comm_t alone() {
  fsccl_unique_id_t id{};
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.unique_id = &id;
  config.rank = 0;
  config.ranks = 1;
  fsccl_comm_t comm = nullptr;
  FUZZ_REQUIRE(fsccl_unique_id_create(&id) == FSCCL_OK &&
               fsccl_comm_create(&config, &comm) == FSCCL_OK);
  return comm;
}

// Uses the source through an adaptor, or through none, and now and then beneath a pool.
void use(Source& source, const fsccl_allocator_t& table) {
  fsccl_allocator_t over = table, made = FSCCL_ALLOCATOR_INIT;
  fsccl_status_t status = FSCCL_OK;
  const uint8_t way = source.byte();
  if (way % 4 == 1) status = fsccl_allocator_limit(&table, 1u << 16, &made);
  if (way % 4 == 2) status = fsccl_allocator_count(&table, &made);
  if (way % 4 == 3)
    status = fsccl_allocator_guard(&table, [](void*, const char*) {}, nullptr, &made);
  expect_sense(status);
  if (status < 0) return;
  if (way % 4) {
    over = made;
    for (int i = 0; i < 3; i++) {
      void* pointer = nullptr;
      const size_t bytes = size_t{source.byte()} << source.byte() % 10;
      status =
          over.allocate(over.context, bytes, size_t{1} << source.byte() % 13, nullptr, &pointer);
      expect_sense(status);
      if (status == FSCCL_OK) expect_sense(over.deallocate(over.context, pointer, bytes, nullptr));
    }
  }
  static const fsccl_comm_t comm = alone();
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.limit_bytes = 1u << 20;
  config.source = &over;
  fsccl_pool_t pool = nullptr;
  status = fsccl_pool_create(comm, &config, &pool);
  expect_sense(status);
  if (status == FSCCL_OK) {
    void* pointer = nullptr;
    status = fsccl_pool_alloc(pool, 5000, nullptr, &pointer);
    expect_sense(status);
    if (status == FSCCL_OK) {
      std::memset(pointer, 1, 5000);
      FUZZ_REQUIRE(fsccl_pool_free(pool, pointer, nullptr) == FSCCL_OK);
    }
    FUZZ_REQUIRE(fsccl_pool_destroy(pool) == FSCCL_OK);
  }
  if (way % 4) expect_sense(made.destroy(made.context));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const bool set = fsccl_config_set("FSCCL_BOOTSTRAP_TCP", "0") == FSCCL_OK &&
                          fsccl_config_set("FSCCL_POOL_REGION_BYTES", "3M") == FSCCL_OK;
  FUZZ_REQUIRE(set);
  Source source(data, bytes);
  use(source, read_table(source));
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (char odd = 0; odd < 112; odd = static_cast<char>(odd + (odd % 16 == 3 ? 13 : 1)))
    for (char way = 0; way < 4; way++)
      seeds.push_back(std::string{odd, way, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  seeds.push_back({0x13, offsetof(fsccl_allocator_t, share) + 2, 0, 0});  // ends within a pointer
  for (char answer = 1; answer < 8; answer++) {
    seeds.push_back(std::string{3, 0, answer, answer, 0, 0, 0, 0});
    seeds.push_back(std::string{3, 0, 0, answer, answer, 0, 0, 0});
  }
  return seeds;
}
