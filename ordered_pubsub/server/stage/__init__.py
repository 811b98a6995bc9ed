"""The loop around the driver: `node` feeds it and sends what it says, `choosing` leaves out what a filter does not want."""
