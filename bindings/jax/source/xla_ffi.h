/*
 * This header declares the part of XLA's typed FFI that is used here: its C ABI, versions 0.3 to
 * 0.5, whose structures only grow. A handler says which version it was made for, and XLA keeps
 * those of at least a year working; so one library serves jaxlib 0.10 to 0.12. (jaxlib's own header
 * is include/xla/ffi/api/c_api.h; the names are the same without XLA_FFI_.)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once
#include <cstddef>
#include <cstdint>

namespace xla_ffi {

constexpr int kMajor = 0, kMinor = 3;

struct Error;
struct Future;
struct Context;

struct Extension {
  size_t struct_size;
  int type;  // 1: metadata
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extension;
  int major, minor;
};

struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
  int64_t state_type;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  size_t struct_size;
  Extension* extension;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Buffers {
  size_t struct_size;
  Extension* extension;
  int64_t size;
  int* types;
  Buffer** buffers;
};

struct Span {
  const char* data;
  size_t size;
};

struct Scalar {
  int dtype;
  void* value;
};

struct Array {
  int dtype;
  size_t size;
  void* data;
};

struct Attributes {
  size_t struct_size;
  Extension* extension;
  int64_t size;
  int* types;  // 1: array, 3: scalar, 4: string
  Span** names;
  void** values;
};

struct ErrorCreate {
  size_t struct_size;
  Extension* extension;
  const char* message;
  int code;
};

struct FutureCreate {
  size_t struct_size;
  Extension* extension;
  Future* future;
};

struct FutureAvailable {
  size_t struct_size;
  Extension* extension;
  Future* future;
};

struct FutureError {
  size_t struct_size;
  Extension* extension;
  Future* future;
  Error* error;
};

struct DeviceOrdinal {
  size_t struct_size;
  Extension* extension;
  Context* context;
  int32_t ordinal;
};

struct StreamGet {
  size_t struct_size;
  Extension* extension;
  Context* context;
  void* stream;  // out
};

struct RunId {
  size_t struct_size;
  Extension* extension;
  Context* context;
  int64_t id;  // out
};

struct Api {
  size_t struct_size;
  Extension* extension;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreate*);
  void* before_stream[3];  // error_get_message .. handler_register
  Error* (*stream_get)(StreamGet*);
  void* before_futures[8];  // type_register .. thread_pool_num_threads
  Error* (*future_create)(FutureCreate*);
  Error* (*future_set_available)(FutureAvailable*);
  Error* (*future_set_error)(FutureError*);
  Error* (*run_id_get)(RunId*);
  Error* (*device_ordinal_get)(DeviceOrdinal*);
};

struct Call {
  size_t struct_size;
  Extension* extension;
  const Api* api;
  Context* context;
  int stage;  // 3: execute
  Buffers arguments, results;
  Attributes attributes;
  Future* future;  // out
};

}  // namespace xla_ffi
