// Vectors whose lanes are clients: lane l of every vector belongs to client l. What a step does to one number of one
// client is done to the same number of LANES clients by one instruction, so that no product is too small to be fast.
// The code of a step, which lane_code.py writes, is compiled together with this file. REAL is float or double.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define WIDTH 64
#define REGISTERS 32
#elif defined(__AVX__)
#define WIDTH 32
#define REGISTERS 16
#else
#define WIDTH 16
#define REGISTERS 16
#endif

constexpr int LANES = WIDTH / sizeof(REAL);
typedef REAL V __attribute__((vector_size(WIDTH)));
typedef decltype(V{} < V{}) Mask;  // a whole number in each lane: -1 is true, 0 is false
#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

INLINE V all(REAL value) { return V{} + value; }
INLINE V pick(Mask mask, V yes, V no) { return mask ? yes : no; }
INLINE V truth(Mask mask) { return mask ? all(1) : all(0); }

// The mathematical functions of glibc exist for whole vectors, too; the compiler takes those where they are declared so.
#if defined(__x86_64__) && defined(__GLIBC__)
#define VECTORISED extern "C" __attribute__((simd("notinbranch")))
VECTORISED float expf(float) noexcept;
VECTORISED float logf(float) noexcept;
VECTORISED double exp(double) noexcept;
VECTORISED double log(double) noexcept;
#endif
#define OF_LANES(name)                                              \
    INLINE V name##_(V x) {                                         \
        V result;                                                   \
        for (int l = 0; l < LANES; l++) result[l] = std::name(x[l]); \
        return result;                                              \
    }
OF_LANES(exp)
OF_LANES(log)
OF_LANES(sqrt)
OF_LANES(tanh)
OF_LANES(erf)
OF_LANES(abs)

INLINE V square(V x) { return x * x; }
INLINE V sigmoid_(V x) { return all(1) / (all(1) + exp_(-x)); }
// As in torch, NaN stays NaN.
INLINE V larger(V a, V b) { return pick((a > b) | (a != a), a, b); }
INLINE V smaller(V a, V b) { return pick((a < b) | (a != a), a, b); }

// A matrix in memory: steps from row to row and from column to column.
template <int DOWN, int RIGHT>
struct Matrix {
    const V* at;
    INLINE V operator()(int i, int j) const { return at[i * DOWN + j * RIGHT]; }
};

// A tile of a product, kept in registers: each vector that is loaded is used several times.
template <int I, int J, int K, class A, class B, class Store>
INLINE void tile(A a, B b, int top, int left, Store store) {
    V sum[I][J] = {};
    for (int k = 0; k < K; k++) {
        V column[I];
        UNROLL for (int i = 0; i < I; i++) column[i] = a(top + i, k);
        UNROLL for (int j = 0; j < J; j++) {
            V entry = b(k, left + j);
            UNROLL for (int i = 0; i < I; i++) sum[i][j] += column[i] * entry;
        }
    }
    UNROLL for (int i = 0; i < I; i++) {
        UNROLL for (int j = 0; j < J; j++) store(top + i, left + j, sum[i][j]);
    }
}

struct Tile {
    int rows, columns;
};

// The shape of tiles that fits a product of M x N best: sums, a column and an entry must fit the registers.
template <int M, int N>
constexpr Tile best_tile() {
    Tile best{1, 1};
    double least = 1e30;
    for (int i = 1; i <= 8 && i <= M; i++) {
        for (int j = 1; j <= 12 && j <= N; j++) {
            if (i * j + i + 1 > REGISTERS - 1) continue;
            double cost = 0;  // two vectors are loaded, and two multiplied, in the time of one unit
            for (int top = 0; top < M; top += i) {
                int rows = M - top < i ? M - top : i;
                for (int left = 0; left < N; left += j) {
                    int columns = N - left < j ? N - left : j;
                    // A sum takes four units to come back: fewer than eight of them would wait for each other.
                    int work = rows * columns < 8 ? 8 : rows * columns;
                    cost += (work > rows + columns ? work : rows + columns) + 0.3 * (rows + columns);
                }
            }
            if (cost < least) least = cost, best = Tile{i, j};
        }
    }
    return best;
}

template <int I, int J, int N, int K, class A, class B, class Store>
INLINE void tiles_of_rows(A a, B b, int top, Store store) {
    for (int left = 0; left + J <= N; left += J) tile<I, J, K>(a, b, top, left, store);
    if constexpr (N % J != 0) tile<I, N % J, K>(a, b, top, N - N % J, store);
}

// The product of a matrix M x K and one of K x N; each entry goes to `store`.
template <int M, int N, int K, class A, class B, class Store>
INLINE void product(A a, B b, Store store) {
    constexpr Tile best = best_tile<M, N>();
    constexpr int I = best.rows, J = best.columns;
    for (int top = 0; top + I <= M; top += I) tiles_of_rows<I, J, N, K>(a, b, top, store);
    if constexpr (M % I != 0) tiles_of_rows<M % I, J, N, K>(a, b, M - M % I, store);
}

// The sum of N terms, in several running sums, which do not wait for each other.
template <int N, class Term>
INLINE V sum_of(Term term) {
    constexpr int PARTS = N < 8 ? 1 : 8;
    V parts[PARTS] = {};
    for (int i = 0; i + PARTS <= N; i += PARTS) {
        UNROLL for (int p = 0; p < PARTS; p++) parts[p] += term(i + p);
    }
    for (int i = N - N % PARTS; i < N; i++) parts[0] += term(i);
    UNROLL for (int p = 1; p < PARTS; p++) parts[0] += parts[p];
    return parts[0];
}

template <int N, class Term>
INLINE V largest_of(Term term) {
    V found = term(0);
    for (int i = 1; i < N; i++) found = larger(term(i), found);
    return found;
}

// Rows become columns: vectors of one client's numbers become vectors of one number of all clients, or the reverse.
template <int STEP>
INLINE void transpose_blocks(V* block) {
    if constexpr (STEP < LANES) {
        Mask low, high;
        UNROLL for (int l = 0; l < LANES; l++) {
            low[l] = l & STEP ? LANES + l - STEP : l;
            high[l] = l & STEP ? LANES + l : l + STEP;
        }
        UNROLL for (int i = 0; i < LANES; i++) {
            if (i & STEP) continue;
            V upper = block[i], lower = block[i | STEP];
            block[i] = __builtin_shuffle(upper, lower, low);
            block[i | STEP] = __builtin_shuffle(upper, lower, high);
        }
        transpose_blocks<2 * STEP>(block);
    }
}

// N numbers of each client, of type T, as N vectors.
template <class T, int N>
INLINE void load(V* into, const T* const* from) {
    typedef T Packed __attribute__((vector_size(sizeof(T) * LANES)));
    int n = 0;
    for (; n + LANES <= N; n += LANES) {
        V block[LANES];
        UNROLL for (int l = 0; l < LANES; l++) {
            Packed some;
            memcpy(&some, from[l] + n, sizeof some);
            block[l] = __builtin_convertvector(some, V);
        }
        transpose_blocks<1>(block);
        UNROLL for (int l = 0; l < LANES; l++) into[n + l] = block[l];
    }
    for (; n < N; n++) {
        for (int l = 0; l < LANES; l++) into[n][l] = from[l][n];
    }
}

// N vectors as N numbers of each of the first clients.
template <int N>
INLINE void save(REAL* const* into, const V* from, int clients) {
    int n = 0;
    for (; n + LANES <= N; n += LANES) {
        V block[LANES];
        UNROLL for (int l = 0; l < LANES; l++) block[l] = from[n + l];
        transpose_blocks<1>(block);
        for (int l = 0; l < clients; l++) memcpy(into[l] + n, &block[l], sizeof(V));
    }
    for (; n < N; n++) {
        for (int l = 0; l < clients; l++) into[l][n] = from[n][l];
    }
}

// The rows of the first clients as they are, if they are to be somewhere else. Nowhere is a place, too.
template <class T, int N>
INLINE void keep(void* into, const void* from, const int64_t* place, int clients) {
    if (!into || into == from) return;
    for (int l = 0; l < clients; l++) memcpy((T*)into + place[l] * N, (const T*)from + place[l] * N, N * sizeof(T));
}
