package harness

import (
	"fmt"
	"runtime"
	"strings"
)

// Goroutines returns the stacks of all goroutines in the caller's bubble, by their ids.
func Goroutines() map[string]string { return goroutines(currentBubble()) }

func stacksOf(bubble string) string {
	var all strings.Builder
	for _, stack := range goroutines(bubble) {
		fmt.Fprintf(&all, "%s\n\n", stack)
	}
	return all.String()
}

// goroutines returns the stacks of a bubble's goroutines by their ids.
func goroutines(bubble string) map[string]string {
	stacks := map[string]string{}
	buffer := make([]byte, 1<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	for stack := range strings.SplitSeq(string(buffer), "\n\n") {
		if bubbleOf(stack) == bubble {
			id, _, _ := strings.Cut(stack, " [")
			stacks[id] = stack
		}
	}
	return stacks
}

// currentBubble returns the number of the caller's.
func currentBubble() string {
	header := make([]byte, 1<<8)
	return bubbleOf(string(header[:runtime.Stack(header, false)]))
}

// bubbleOf returns the number of the bubble from the first line of a stack:
// "goroutine 7 [running, synctest bubble 3]:".
func bubbleOf(stack string) string {
	header, _, _ := strings.Cut(stack, "\n")
	_, bubble, _ := strings.Cut(header, "synctest bubble ")
	bubble, _, _ = strings.Cut(bubble, "]")
	return bubble
}
