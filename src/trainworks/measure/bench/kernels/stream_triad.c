/* STREAM's triad in host memory, a[i] = b[i] + s * c[i]: stream_triad ELEMENTS TIMES CPU,CPU,...
 *
 * Prints the threads and the least time of a pass in seconds, without the first pass, as STREAM does.
 * The threads run on the given processors. Each touches its part of the arrays first, which places the memory near it.
 */
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    FILE *first_victim = fopen("/proc/self/oom_score_adj", "w"); /* no job ends for lack of memory before this program */
    if (first_victim) {
        fputs("1000", first_victim);
        fclose(first_victim);
    }
    long elements = atol(argv[1]), times = atol(argv[2]), threads = 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (char *cpu = strtok(argv[3], ","); cpu; cpu = strtok(NULL, ","), threads++) CPU_SET(atoi(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        perror("sched_setaffinity");
        return 1;
    }
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    double *a = malloc(elements * 8), *b = malloc(elements * 8), *c = malloc(elements * 8), best = 1e30;
    if (!a || !b || !c) {
        fprintf(stderr, "not enough memory for three arrays of %ld bytes\n", elements * 8);
        return 1;
    }
#pragma omp parallel for
    for (long i = 0; i < elements; i++) a[i] = 1, b[i] = 2, c[i] = 0.5;
    for (long pass = 0; pass < times; pass++) {
        double started = omp_get_wtime();
#pragma omp parallel for
        for (long i = 0; i < elements; i++) a[i] = b[i] + 3.0 * c[i];
        double seconds = omp_get_wtime() - started;
        if (pass && seconds < best) best = seconds;
        b[pass % elements] += 1e-9; /* the passes must not be the same, or a compiler may leave some out */
    }
    for (long i = 0; i < elements; i++)
        if (a[i] < 3.4 || a[i] > 3.6) {
            fprintf(stderr, "wrong result at %ld: %g\n", i, a[i]);
            return 1;
        }
    printf("%ld %.9g\n", threads, best);
    return 0;
}
