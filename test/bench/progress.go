package bench

import (
	"fmt"
	"io"
	"math"
	"sync"
)

// logger writes lines of progress.
type logger struct {
	mutex sync.Mutex
	out   io.Writer
}

func (l *logger) log(format string, arguments ...any) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	fmt.Fprintf(l.out, format+"\n", arguments...)
}

func clock(seconds float64) string {
	return fmt.Sprintf("%d:%02d", int(math.Round(seconds))/60, int(math.Round(seconds))%60)
}
