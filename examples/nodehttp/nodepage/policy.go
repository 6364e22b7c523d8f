package nodepage

import (
	"crypto/sha256"
	_ "embed" // for the parts of the page
	"encoding/base64"
)

var (
	//go:embed page.css
	style string
	//go:embed page.js
	script string
)

// policy is the page's Content-Security-Policy. The page has its own style and its own script,
// which asks its own server; nothing else loads, nothing frames it, and no text becomes HTML
// in the script's hands.
func policy() string {
	return "default-src 'none'; style-src " + hash(style) + "; script-src " + hash(script) + "; connect-src 'self'; form-action 'self'; " +
		"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
