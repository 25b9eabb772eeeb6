"""What the engines that make pods share."""
