// The passes over device memory, one launch for all the pieces of a unit: cast and pack, copy, the
// reduce of n sources with its epilogue, and the encoding and decoding of blocks. Elements are
// bit-equal to those of the host's kernels (kernels.h), and so is the norm: the same accumulators,
// the same roundings, no fused multiply-add, no flush to zero, the same blocks of kNormBlock
// elements. Encoded bytes are those of the host's block codecs.
//
// A table of pieces is made once, together with a unit, and lies in device memory. A launch
// receives the table and the addresses that change from step to step. Launches are put on a stream
// and return at once.
//
// The kernels are `fsccl_cast` and `fsccl_reduce`, `fsccl_divide` for averages, and for block
// codecs `fsccl_encode` (two launches) and `fsccl_decode`, or `fsccl_encode_sums` and
// `fsccl_decode_sums` for reductions. If a reduce has more than 64 sources, their addresses do not
// fit a launch: a launch of `fsccl_put_bases` before it writes them to device memory, in the order
// of the stream.
//
// nvcc 12.0 or later compiles the kernels. Without nvcc (-Dcuda=disabled) everything else builds,
// and DeviceKernels::of() says so. Tests compile the same source for the CPU
// (tests/stand_in/cuda/emulated_kernels).
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "cuda/device.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/table_memory.h"

namespace fsccl::cuda {

// A piece to convert from source to destination. The types are any pair that cast() of kernels.h
// converts, or equal types of any kind (a copy). Addresses need only the alignment of an element.
struct CastRange {
  CUdeviceptr source = 0;    // an address, or an offset where CastBase says so
  uint64_t destination = 0;  // an address, or an offset where CastBase says so
  uint64_t count = 0;        // elements
  fsccl_dtype_t from = FSCCL_FLOAT32, to = FSCCL_FLOAT32;
};

// A piece to reduce: the destination receives the sum over the sources, in their order, of the
// elements at `offset` behind each source's base.
struct ReduceRange {
  uint64_t offset = 0;          // bytes, behind the base of every source
  CUdeviceptr destination = 0;  // an address
  uint64_t count = 0;           // elements
  fsccl_dtype_t from = FSCCL_FLOAT32, to = FSCCL_FLOAT32;
};

struct ReduceEpilogue {
  double scale = 1;
  // Divides the sum. If it is not a power of two, `scale` must be 1, because the kernel then only
  // divides. (Reduce in kernels.h can do both.)
  int64_t divisor = 1;
  bool accumulate = false;
};

// The result that a reduce leaves in memory that the device reaches, in stream order.
struct DeviceNorm {
  double sum;
  int finite, unused;
};

// Says which addresses in a table are offsets behind the base that a launch names.
enum class CastBase : uint8_t { destinations, sources, both };

class CastTable;    // pieces in device memory
class ReduceTable;  // pieces in device memory, and the scratch of the norm
class BlockTable;   // chunks in device memory, and the scratch of an encoder

// A table must outlive what was launched with it.
class DeviceKernels {
 public:
  // Returns the kernels of a device, which are loaded once. Returns FSCCL_ERR_NOT_AVAILABLE if the
  // library was built without nvcc, or not for this GPU. Any thread may call it.
  static Result<const DeviceKernels*> of(const Device& device);

  // Uploads the pieces and waits for the upload, but for nothing else on the device.
  Result<std::shared_ptr<const CastTable>> make_casts(const std::vector<CastRange>& pieces,
                                                      CastBase base) const;
  // Offsets of sources are behind `source_base`, those of destinations behind `destination_base`. A
  // base is ignored where the table has addresses (CastBase).
  Status cast(const CastTable& table, CUdeviceptr source_base, CUdeviceptr destination_base,
              CUstream stream) const;

  // Takes pieces of fp16, bf16, fp32 and fp64. Integers give FSCCL_ERR_NOT_AVAILABLE, because they
  // are not gradients.
  Result<std::shared_ptr<const ReduceTable>> make_reduces(const std::vector<ReduceRange>& pieces,
                                                          int sources) const;
  // `bases` has a base for each source that the table was made for; the call copies them. `norm` is
  // null, or memory for a DeviceNorm that the device can write. A table must not be in two launches
  // at a time, because they would share the scratch of its norm.
  Status reduce(const ReduceTable& table, const CUdeviceptr* bases, const ReduceEpilogue& epilogue,
                CUdeviceptr norm, CUstream stream) const;
  // Divides `count` floats or doubles in place. Each quotient is rounded once.
  Status divide(CUdeviceptr values, uint64_t count, fsccl_dtype_t dtype, int64_t divisor,
                CUstream stream) const;

  // Takes the chunks of parts (chunks.h). A table for encode() has one part. A table must not be in
  // two launches at a time, because they would share the encoder's scratch.
  Result<std::shared_ptr<const BlockTable>> make_blocks(const BlockCoding& coding,
                                                        const std::vector<CodedPart>& parts,
                                                        const std::vector<uint64_t>& begins) const;
  Status encode(const BlockTable& table, CUdeviceptr elements_base, CUdeviceptr codes_base,
                const BlockMeasure& measure, CUstream stream) const;
  // Writes to `states`, which has a uint32_t for each part, the PartState of parts that are not
  // good. The elements of their chunks that could not be decoded are then NaN.
  Status decode(const BlockTable& table, CUdeviceptr codes_base, CUdeviceptr elements_base,
                CUdeviceptr states, CUstream stream) const;

  // These encode and decode elements that are to be summed. Parts begin at a multiple of 4 bytes.
  // encode_sums() adds what is at `feedback` to the elements and leaves there what encoding loses:
  // floats, one for each element, in the order of the table. 0: no feedback. decode_sums() writes
  // fp32. A table may be in several launches at a time.
  Result<std::shared_ptr<const BlockTable>> make_sums(
      const BlockCoding& coding, const std::vector<std::vector<BlockRange>>& parts,
      const std::vector<uint64_t>& begins) const;
  Status encode_sums(const BlockTable& table, CUdeviceptr elements_base, CUdeviceptr feedback,
                     CUdeviceptr codes_base, CUstream stream) const;
  Status decode_sums(const BlockTable& table, CUdeviceptr codes_base, CUdeviceptr elements_base,
                     CUdeviceptr states, CUstream stream) const;

  // Returns how many blocks of a reduce the device runs at once. If there are more tiles, each
  // block takes several.
  uint32_t reduce_blocks(bool norm) const { return norm ? norm_blocks_ : reduce_blocks_; }

 private:
  DeviceKernels(const Device& device, CUstream uploads)
      : device_(device), uploads_(uploads), memory_(std::make_unique<TableMemory>(device)) {}
  static Result<const DeviceKernels*> load(const Device& device);
  Status find(const char* name, CUfunction& function) const;
  uint32_t blocks_at_once(CUfunction function, uint32_t threads) const;
  Result<std::unique_ptr<TableMemory::Bytes>> upload(const std::vector<std::byte>& bytes) const;
  uint32_t codec_grid(const BlockTable& table, uint32_t most) const;
  Status launch(CUfunction function, uint32_t blocks, uint32_t threads, void* argument,
                const char* name, CUstream stream) const;

  const Device& device_;
  CUstream uploads_;
  std::unique_ptr<TableMemory> memory_;
  CUmodule module_ = nullptr;
  CUfunction cast_ = nullptr, reduce_ = nullptr, put_bases_ = nullptr, divide_ = nullptr;
  CUfunction encode_ = nullptr, decode_ = nullptr;
  CUfunction encode_sums_ = nullptr, decode_sums_ = nullptr;
  uint32_t cast_blocks_ = 0, reduce_blocks_ = 0, norm_blocks_ = 0;  // run at once
  uint32_t encode_blocks_ = 0, decode_blocks_ = 0;
  uint32_t encode_sums_blocks_ = 0, decode_sums_blocks_ = 0;
};

}  // namespace fsccl::cuda
