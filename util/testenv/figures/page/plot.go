package main

import (
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/podvol/podvol/util/testenv/figures"
)

// The plot's size, and the rectangle in which the curve is.
const (
	plotWidth, plotHeight    = 640, 300
	plotLeft, plotRight      = 90, 620
	plotTop, plotBottom      = 48, 244
	plotSteps                = 4 // of the vertical axis
	plotLight, plotLightLine = "#1f2328", "#0969da"
	plotDark, plotDarkLine   = "#e6edf3", "#58a6ff"
)

// plot draws a curve as SVG, readable on light and on dark ground: the number of items along
// a logarithmic axis, the cost of each above it, from zero on. A curve that is flat costs the
// same however many there are.
func plot(c figures.Curve) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" font-family="sans-serif" font-size="13">
<title>%s</title>
<style>text{fill:%s}.axis{stroke:%s;stroke-opacity:.25}.curve{stroke:%s;fill:none;stroke-width:2.5}.point{fill:%s}@media(prefers-color-scheme:dark){text{fill:%s}.axis{stroke:%s}.curve{stroke:%s}.point{fill:%s}}</style>
`, plotWidth, plotHeight, plotWidth, plotHeight, html.EscapeString(c.What), plotLight, plotLight, plotLightLine, plotLightLine, plotDark, plotDark, plotDarkLine, plotDarkLine)
	fmt.Fprintf(&b, `<text x="%d" y="24" font-size="15">%s</text>`+"\n", plotLeft, html.EscapeString(c.What))
	most := 0.0
	for _, p := range c.Points {
		most = max(most, p.Y)
	}
	step := roundStep(most / plotSteps)
	top := step * math.Max(1, math.Ceil(most*1.05/step))
	yOf := func(y float64) float64 { return plotBottom - y/top*(plotBottom-plotTop) }
	for y := 0.0; y <= top*1.001; y += step {
		fmt.Fprintf(&b, `<line class="axis" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			plotLeft, plotRight, yOf(y), yOf(y), plotLeft-8, yOf(y)+4, c.Unit.Format(y))
	}
	xOf := along(c.Points)
	var path []string
	for _, p := range c.Points {
		x, y := xOf(p.X), yOf(p.Y)
		path = append(path, fmt.Sprintf("%.1f,%.1f", x, y))
		fmt.Fprintf(&b, `<circle class="point" cx="%.1f" cy="%.1f" r="4"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, y, x, plotBottom+20, thousands(p.X))
	}
	fmt.Fprintf(&b, `<polyline class="curve" points="%s"/><text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n</svg>\n",
		strings.Join(path, " "), (plotLeft+plotRight)/2, plotHeight-12, html.EscapeString(c.Of))
	return b.String()
}

// along places numbers on a logarithmic axis, with some room at both ends.
func along(points []figures.Point) func(float64) float64 {
	const margin = 24
	if len(points) < 2 || points[0].X <= 0 {
		return func(float64) float64 { return (plotLeft + plotRight) / 2 }
	}
	first, last := math.Log(points[0].X), math.Log(points[len(points)-1].X)
	return func(x float64) float64 {
		return plotLeft + margin + (math.Log(x)-first)/(last-first)*(plotRight-plotLeft-2*margin)
	}
}

// roundStep is the next of 1, 2, 5, 10, 20, … from step on.
func roundStep(step float64) float64 {
	if step <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(step)))
	for _, factor := range []float64{1, 2, 5} {
		if step <= factor*power {
			return factor * power
		}
	}
	return 10 * power
}

// thousands writes a whole number with commas.
func thousands(x float64) string {
	digits := fmt.Sprintf("%.0f", x)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
