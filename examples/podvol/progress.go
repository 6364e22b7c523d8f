package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progress is one line on a terminal that says what is waited for; elsewhere
// it is silent.
type progress struct {
	terminal io.Writer // nil where there is none
	shown    bool
}

func newProgress(w io.Writer) *progress {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progress{terminal: w}
	}
	return &progress{}
}

const clearLine = "\r\x1b[K"

func (p *progress) show(waiting int, elapsed time.Duration) {
	if p.terminal == nil || waiting == 0 {
		return
	}
	p.shown = true
	noun := "volumes"
	if waiting == 1 {
		noun = "volume"
	}
	fmt.Fprintf(p.terminal, "%sWaiting for %d %s (%ds) …", clearLine, waiting, noun, int(elapsed.Seconds()))
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.terminal, clearLine)
		p.shown = false
	}
}
