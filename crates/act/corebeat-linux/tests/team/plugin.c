/* A library that brings its own OpenMP runtime, as Python's wheels do. */
int team_size(void) {
    int size = 0;
#pragma omp parallel
#pragma omp atomic
    size++;
    return size;
}
