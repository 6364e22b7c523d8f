package testtool

import (
	"flag"
	"runtime"
	"strconv"
)

// MoreAtOnce lets twice as many parallel tests run at once as there are processors,
// for a package whose tests wait more than they compute. TestMain calls it before
// m.Run; the flag -parallel wins.
func MoreAtOnce() error {
	return flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
}
