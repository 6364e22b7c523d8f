package main

import (
	"flag"
	"io"
	"testing"
)

// How large logs become is given like a kubelet's.
func TestFlagsOfLogs(t *testing.T) {
	for _, test := range []struct {
		args  []string
		size  int64
		files int
		bad   bool
	}{
		{nil, 0, 0, false},
		{[]string{"--container-log-max-size=50Mi", "--container-log-max-files=3"}, 50 << 20, 3, false},
		{[]string{"--container-log-max-size=much"}, 0, 0, true},
		{[]string{"--container-log-max-size=0"}, 0, 0, true},
		{[]string{"--container-log-max-files=1"}, 0, 0, true},
		{[]string{"--container-log-max-files=few"}, 0, 0, true},
	} {
		var c config
		set := flag.NewFlagSet("virtualkubelet", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		c.flags(set)
		err := set.Parse(test.args)
		if (err != nil) != test.bad || err == nil && (c.logMaxSize != test.size || c.logMaxFiles != test.files) {
			t.Errorf("%q: %d, %d, %v", test.args, c.logMaxSize, c.logMaxFiles, err)
		}
	}
}
