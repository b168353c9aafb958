// A kernel for the stand-in's own test.
extern "C" {
extern const unsigned fsccl_emulated_sizes_add[];
const unsigned fsccl_emulated_sizes_add[] = {sizeof(unsigned*), sizeof(unsigned), 0};

// Each thread adds to an element of its own.
void fsccl_emulated_add(const unsigned grid[3], const unsigned block[3], void** arguments) {
  unsigned* const values = *static_cast<unsigned**>(arguments[0]);
  const unsigned more = *static_cast<unsigned*>(arguments[1]);
  for (unsigned i = 0; i < grid[0] * block[0]; i++) values[i] += more;
}
}
