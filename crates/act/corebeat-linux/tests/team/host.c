/* Loads libraries with local symbols, and prints the size of their teams after each byte of
 * input. */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char c;
    while (read(0, &c, 1) == 1) {
        for (int i = 1; i < argc; i++) {
            void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
            int (*team_size)(void) = library ? (int (*)(void))dlsym(library, "team_size") : 0;
            if (!team_size)
                return fprintf(stderr, "%s\n", dlerror()), 1;
            printf("%s%d", i > 1 ? " " : "", team_size());
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
