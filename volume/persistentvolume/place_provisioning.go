package persistentvolume

import "sync"

// placing are the claims for which a placement wants storage made.
type placing struct {
	mu     sync.Mutex
	claims map[ClaimID]bool
}

// begin reports false for a claim that is being placed already.
func (p *placing) begin(claim ClaimID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claims[claim] {
		return false
	}
	if p.claims == nil {
		p.claims = make(map[ClaimID]bool)
	}
	p.claims[claim] = true
	return true
}

func (p *placing) end(claim ClaimID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, claim)
}
