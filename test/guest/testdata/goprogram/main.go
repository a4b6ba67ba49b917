// Command goprogram is a Go program with C in it, which prints what it has.
package main

// #include <pthread.h>
import "C"

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	for _, line := range strings.Split(string(status), "\n") {
		if strings.HasPrefix(line, "Sig") && !strings.HasPrefix(line, "SigQ") {
			fmt.Println(line)
		}
	}
	fmt.Println(C.pthread_self() != 0)
}
