/* Ping-pong between the first and the last rank, then an all-reduce of all: mpi_transfers LARGEST_BYTES
 *
 * Prints "OPERATION BYTES SECONDS" per size: half a round trip, or the mean time of an all-reduce on the slowest rank.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static void round_trip(float *buffer, long bytes) {
    if (rank == 0) {
        MPI_Send(buffer, bytes, MPI_BYTE, ranks - 1, 0, MPI_COMM_WORLD);
        MPI_Recv(buffer, bytes, MPI_BYTE, ranks - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == ranks - 1) {
        MPI_Recv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
}

static double mean_seconds(int is_ping, float *from, float *to, long bytes, int times) {
    MPI_Barrier(MPI_COMM_WORLD);
    double started = MPI_Wtime(), mine, slowest;
    for (int i = 0; i < times; i++) {
        if (is_ping)
            round_trip(from, bytes);
        else
            MPI_Allreduce(from, to, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    mine = (MPI_Wtime() - started) / times;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return is_ping ? slowest / 2 : slowest;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long largest = argc > 1 ? atol(argv[1]) : 4 << 20;
    float *from = calloc(largest, 1), *to = calloc(largest, 1);
    if (!from || !to) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int is_ping = 1; is_ping >= 0; is_ping--)
        for (long bytes = 8; bytes <= largest; bytes *= 8) {
            int times = bytes < 65536 ? 500 : 30;
            mean_seconds(is_ping, from, to, bytes, times / 10);
            double seconds = mean_seconds(is_ping, from, to, bytes, times);
            if (rank == 0) printf("%s %ld %.9g\n", is_ping ? "ping_pong" : "all_reduce", bytes, seconds);
        }
    MPI_Finalize();
    return 0;
}
