// A sparse matrix times dense rows. A block of columns of all rows is copied to memory that stays in the cache, where
// every row is read once for each neighbour; so the product may also be written over the rows. REAL is float or double.

#include <cstdint>
#include <cstring>

constexpr int BYTES = 128;  // of a row in a block: 8,000 rows stay in a cache of a megabyte
constexpr int COLUMNS = BYTES / sizeof(REAL);
#if defined(__AVX512F__)
constexpr int WIDTH = 64;
#else
constexpr int WIDTH = 32;
#endif
typedef REAL V __attribute__((vector_size(WIDTH)));
constexpr int VECTORS = BYTES / WIDTH;

extern "C" int64_t bytes_of_row() { return BYTES; }

// `matrix` has its rows' ends, its columns and its weights. Source s has `rows[s]` rows, `strides[s]` numbers apart.
extern "C" void multiply(const int64_t* ends, const int32_t* neighbours, const REAL* weights, int64_t results,
                         const REAL* const* sources, const int64_t* rows, const int64_t* strides, int64_t number,
                         REAL* into, int64_t stride, int64_t columns, V* block) {
    for (int64_t left = 0; left < columns; left += COLUMNS) {
        int64_t width = columns - left < COLUMNS ? columns - left : COLUMNS;
        V* to = block;
        for (int64_t s = 0; s < number; s++) {
            for (int64_t row = 0; row < rows[s]; row++, to += VECTORS) {
                memcpy(to, sources[s] + row * strides[s] + left, width * sizeof(REAL));
            }
        }
        int64_t entry = 0;
        for (int64_t row = 0; row < results; row++) {
            V sums[VECTORS] = {};
            for (; entry < ends[row]; entry++) {
                const V* from = block + VECTORS * neighbours[entry];
                REAL weight = weights[entry];
                for (int v = 0; v < VECTORS; v++) sums[v] += weight * from[v];
            }
            memcpy(into + row * stride + left, sums, width * sizeof(REAL));
        }
    }
}
