package client

// Queued returns how many submits the queue holds, also of callers who have gone.
func (c *Client) Queued() int {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	return len(c.queue.queue) + len(c.queue.ready)
}
